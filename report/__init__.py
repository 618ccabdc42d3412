"""Pictures of schedules: terminal, SVG, HTML, trace."""
