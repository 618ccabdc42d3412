"""The vocabulary: op, profile, problem, placement, schedule and program."""
