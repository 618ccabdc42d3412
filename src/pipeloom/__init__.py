"""pipeloom: the best pipeline schedule for measured times and memory limits, with a proof, run on torch.distributed."""

__version__ = "0.1.0"
