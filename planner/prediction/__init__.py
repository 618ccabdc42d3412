"""From a model's arithmetic and a cluster to the time and memory of a step."""
