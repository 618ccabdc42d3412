"""Pictures as SVG: schedules, sweeps, plans and their scaling."""
