"""Schedules under op times that vary, and ranks that are slow."""
