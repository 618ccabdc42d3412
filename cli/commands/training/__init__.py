"""Commands that measure or train a model."""
