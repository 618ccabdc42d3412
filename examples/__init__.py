"""Runnable examples: a byte-level GPT, its data, and the demo (``python -m examples.demo``)."""
