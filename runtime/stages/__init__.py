"""Where a stage's weights and gradients live."""
