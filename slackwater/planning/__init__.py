"""From a problem to a schedule with a proof: fleet and costs, solvers, plan, and what a schedule is like."""
