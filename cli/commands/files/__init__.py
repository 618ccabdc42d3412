"""Commands that check, draw and translate schedules and programs."""
