"""Families with several stages per rank, in loops over the ranks."""
