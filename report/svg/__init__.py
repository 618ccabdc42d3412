"""SVG pictures of schedules, sweeps, plans and scaling."""
