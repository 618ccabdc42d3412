"""The choice of passing: activations, weights, both, or FSDP."""
