"""User input: profiles, schedules and programs, given as files or objects, and the problems that
they define."""
