"""The choice of what ranks send: activations, weights, both, or FSDP."""
