"""Profiles from traces that pipeloom or other systems measured, with a reader for each kind of
file."""
