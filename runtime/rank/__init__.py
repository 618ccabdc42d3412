"""One rank: its role, its state, and whether all ranks agree."""
