"""How tensors travel: one small interface, one file a backend."""
