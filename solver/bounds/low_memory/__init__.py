"""Bounds where few microbatches fit in memory."""
