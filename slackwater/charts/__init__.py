"""Charts for papers and reports, and terminal output of plans and results."""
