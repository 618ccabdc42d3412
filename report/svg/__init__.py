"""Pictures as SVG: schedules, sweeps, packings, plans and their scaling."""
