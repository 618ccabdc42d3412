"""Where a rank stores the weights and gradients of its stages."""
