"""Experiments, one folder each: script, recorded result, how to reproduce."""
