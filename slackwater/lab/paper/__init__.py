"""The paper reproduced: one function for each figure and table, next to the numbers that the paper states."""
