"""Results of searches: answers, their candidates, and schedules in tables."""
