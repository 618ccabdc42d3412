"""The cut of a model's layers into stages."""
