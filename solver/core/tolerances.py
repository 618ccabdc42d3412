"""How near is equal: the solver's relative tolerances."""

ROUNDING = 1e-9
"""Slack of a memory limit: sums of sizes are rounded."""
CLOSED = 1e-6
"""Gap of cost and lower bound at which a schedule counts as optimal."""
