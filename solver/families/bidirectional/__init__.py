"""Microbatches that go both ways through two copies of the stages."""
