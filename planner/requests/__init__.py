"""The arguments of public functions and their commands: one frozen dataclass (a *request*) for
each."""
