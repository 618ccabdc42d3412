"""Families with two or more stages per rank, in a V or a wave."""
