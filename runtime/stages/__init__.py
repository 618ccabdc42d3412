"""Storage of stages' weights and gradients."""
