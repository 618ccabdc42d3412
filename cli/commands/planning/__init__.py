"""Commands that plan schedules, cuts, placements and configurations."""
