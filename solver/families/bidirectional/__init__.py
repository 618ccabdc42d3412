"""Families whose microbatches go in both directions through two copies of the stages."""
