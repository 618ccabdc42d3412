"""Several stages a rank, in loops."""
