"""Starts the ranks of a program as processes on this machine, or joins those of torchrun."""
