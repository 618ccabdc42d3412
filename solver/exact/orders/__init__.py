"""All orders of ops as CP-SAT models: bounds and schedules where memory is little."""
