"""Commands that plan: schedules, cuts, placements and configurations, with what they cost."""
