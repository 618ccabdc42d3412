"""What one rank is: its role, its state, and whether all ranks agree."""
