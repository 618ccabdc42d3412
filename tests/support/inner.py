"""Private names of the command line that several test files use, imported in one place."""

# ruff: noqa: F401

from pipeloom.cli.main import COMMANDS, main, parser_of
