"""Two or more stages a rank, in a V or a wave."""
