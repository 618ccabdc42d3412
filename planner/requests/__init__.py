"""Questions of the library: one frozen dataclass for each function and the command of its name."""
