"""User input: profiles, schedules and programs, as files or objects, and the problems they
define."""
