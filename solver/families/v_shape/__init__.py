"""Families with two or more stages per rank, placed in a V or in waves."""
