"""The end of a step: averaging, norm, clipping, optimizers."""
