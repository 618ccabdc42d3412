"""Consecutive iterations, with messages that contend for wires."""
