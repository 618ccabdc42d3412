"""The options of a command at the end of its page: the output of its ``--help``."""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from io import StringIO
from pathlib import PurePosixPath

from pipeloom.cli.main import COMMANDS, main

FOLDER = "commands"


def with_options(page: str, markdown: str) -> str:
    """Return the page, in Markdown, with the options of its command if it describes one."""
    path = PurePosixPath(page)
    if path.parent.name != FOLDER or path.stem not in COMMANDS:
        return markdown
    return f"{markdown}\n## Options\n\n```{{.text .help}}\n{_help(path.stem)}\n```\n"


def _help(command: str) -> str:
    os.environ["COLUMNS"] = "98"  # argparse breaks lines at this column
    with redirect_stdout(StringIO()) as text:
        main([command, "--help"])
    return text.getvalue().strip()
