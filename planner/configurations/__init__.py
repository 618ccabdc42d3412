"""The search over a model's configurations on a cluster: their space, lower bounds, evaluation and
choice."""
