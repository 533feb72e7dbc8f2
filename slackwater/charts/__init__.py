"""Figures for papers and reports, and what the terminal shows of plans and results."""
