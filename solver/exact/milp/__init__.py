"""The formulation as a MILP, solved by CBC in a process of its own."""
