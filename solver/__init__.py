"""Finds schedules: families, bounds, search and exact solvers."""
