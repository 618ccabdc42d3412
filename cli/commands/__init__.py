"""The commands, one file each. A command parses its options, calls the library and prints the
result.

Folders: planning, files, training.
"""
