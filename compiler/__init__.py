"""Lowers schedules to per-rank programs."""
