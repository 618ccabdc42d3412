"""The partition of a model into stages, together with placement and schedule."""
