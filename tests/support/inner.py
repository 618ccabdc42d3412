"""Names of the library that are not public and several files of tests use: one place to change."""

# ruff: noqa: PLC0414

from __future__ import annotations

from pipeloom.cli.main import COMMANDS as COMMANDS
from pipeloom.cli.main import main as main
from pipeloom.cli.main import parser_of as parser_of
from pipeloom.planner.solving.progress import Searched as Searched
from pipeloom.planner.solving.progress import Searching as Searching
