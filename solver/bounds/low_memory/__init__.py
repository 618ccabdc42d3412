"""Bounds for memory that holds few microbatches."""
