"""Profiles of what others measured: traces and tables of timers, a reader for each kind of file."""
