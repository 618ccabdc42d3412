"""Profiles from others' measurements: traces, with a reader for each kind of file."""
