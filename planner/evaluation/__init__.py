"""Evaluations of schedules: step, memory, traffic, bound."""
