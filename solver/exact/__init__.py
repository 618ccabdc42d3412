"""Exact backends of one formulation: CP-SAT and MILP."""
