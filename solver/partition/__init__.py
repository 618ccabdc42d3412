"""The partition of a model into stages, together with their placement and schedule."""
