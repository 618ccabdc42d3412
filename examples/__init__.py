"""Runnable examples: a byte-level GPT, its training data, and the demo (``python -m
examples.demo``)."""
