"""Constructive heuristics: they build schedules from nothing."""
