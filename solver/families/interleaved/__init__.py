"""Families with several stages per rank, where stages loop over the ranks."""
