"""Schedules from nothing, by heuristics."""
