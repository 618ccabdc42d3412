"""The formulation as a MILP, solved by CBC in a process that can be stopped."""
