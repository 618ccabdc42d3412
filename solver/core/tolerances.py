"""How near is equal: the solver's relative tolerances."""

ROUNDING = 1e-9  # slack of a memory limit: sums of sizes are rounded
CLOSED = 1e-6  # gap of cost and lower bound at which a schedule counts as optimal
