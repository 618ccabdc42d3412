"""Bounds where a rank runs several stages, or microbatches go both ways."""
