"""The end of a step: sums and averages of gradients, their norm, clipping, optimizers."""
