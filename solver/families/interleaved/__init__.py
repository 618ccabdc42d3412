"""Several stages per rank, in loops."""
