"""Local search: better orders from a given one."""
