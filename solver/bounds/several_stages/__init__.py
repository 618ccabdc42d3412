"""Bounds for ranks with several stages, and for microbatches that go in both directions."""
