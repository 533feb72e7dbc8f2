"""The paper, reproduced: its figures and tables, one function each, beside the numbers it states."""
