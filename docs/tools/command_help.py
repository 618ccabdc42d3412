"""The reference of commands: what each one's ``--help`` says, from the parsers themselves."""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from io import StringIO

from pipeloom.cli.main import COMMANDS, main

HEAD = """# Command reference

What `pipeloom COMMAND --help` prints. How the commands work together, with real output, is in
[Commands](../commands.md).
"""


def command_reference() -> str:
    """The page, in Markdown: one section a command, in the order of ``pipeloom --help``."""
    os.environ["COLUMNS"] = "98"  # what argparse breaks lines at
    sections = [f"## {name}\n\n```text\n{_help(name)}\n```\n" for name in COMMANDS]
    return "\n".join([HEAD, *sections])


def _help(command: str) -> str:
    with redirect_stdout(StringIO()) as text:
        main([command, "--help"])
    return text.getvalue().strip()
