"""Checks of schedules and programs, written apart from what makes them."""
