"""The state of one solve: problem, bound, incumbent, budget."""
