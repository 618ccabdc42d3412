"""Families in which weights travel."""
