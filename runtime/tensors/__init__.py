"""Tensors of a stage: inputs, outputs, skip connections, random state."""
