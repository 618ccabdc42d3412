"""From instructions to calls: F, B, W, recomputation, offload."""
