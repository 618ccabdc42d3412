"""The executor: turns instructions into calls of F, B, W, recomputation and offload."""
