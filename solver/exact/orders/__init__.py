"""CP-SAT models of all orders of ops, for bounds and schedules if memory is small."""
