"""Profiles from others' measurements: traces and tables of timers, with a reader for each kind of
file."""
