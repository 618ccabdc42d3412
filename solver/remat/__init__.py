"""The optimizer for problems with recomputation, offload or fused backwards."""
