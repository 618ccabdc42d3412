"""The prediction of a step's time and memory, from a model's arithmetic and a cluster's rates."""
