"""Inputs of users: profiles, schedules and programs, as files or objects, and their problem."""
