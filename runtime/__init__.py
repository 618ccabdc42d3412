"""Runs programs on torch.distributed; the only folder that imports torch."""
