"""The formulation as a MILP, solved by CBC or HiGHS in a process that can be stopped."""
