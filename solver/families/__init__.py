"""Schedule families, one file each."""
