"""The passes of the compiler, each from a valid program to a valid program."""
