"""Plan a problem: fleet and costs, solvers, plans with a certificate, and metrics of a schedule."""
