"""The choice of what travels: activations, weights, both, or FSDP."""
