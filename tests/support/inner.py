"""Names of the library that are not public and several files of tests use: one place to change."""

# ruff: noqa: F401

from pipeloom.cli.main import COMMANDS, main, parser_of
from pipeloom.planner.solving.progress import Searched, Searching
