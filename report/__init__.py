"""Pictures of schedules (SVG, HTML, terminal, Chrome trace), of sweeps, and summaries in words."""
