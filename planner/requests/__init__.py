"""The arguments of public functions: one frozen dataclass for each function and its command."""
