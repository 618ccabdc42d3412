"""Constructive heuristics, which build schedules from scratch."""
