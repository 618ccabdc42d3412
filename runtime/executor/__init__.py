"""The executor: from instructions to calls of F, B, W, recomputation, offload."""
