"""Tensors through a stage: inputs, outputs, skips, random numbers."""
