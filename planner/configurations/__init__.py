"""The configurations of a model on a cluster: their space, bounds, evaluation and choice."""
