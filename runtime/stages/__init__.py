"""Storage of the weights and gradients of a rank's stages."""
