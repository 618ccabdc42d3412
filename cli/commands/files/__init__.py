"""Commands that check, draw and convert schedules and programs."""
