"""Commands that plan: schedules, cuts of layers, placements, and configurations of a training
run."""
