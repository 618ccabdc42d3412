"""Commands that run a model: measure it, train it."""
