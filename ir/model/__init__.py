"""The basic types: op, profile, problem, placement, schedule and program."""
