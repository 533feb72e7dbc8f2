"""Reproduction of the paper: one function for each figure and table, compared with the paper's numbers."""
