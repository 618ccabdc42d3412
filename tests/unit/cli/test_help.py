"""Every command explains itself, quickly: nothing heavy is imported for that."""

from __future__ import annotations

import subprocess
import sys

from tests.support.inner import COMMANDS
from tests.support.processes import ENVIRONMENT

HELP = f"""
import sys
from pipeloom.__main__ import command
for name in {list(COMMANDS)}:
    sys.argv = ["pipeloom", name, "--help"]
    try:
        command()
    except SystemExit as ended:
        heavy = {{"numpy", "numba", "ortools", "pulp", "networkx", "pydantic", "torch"}}
        print(name, heavy & {{*sys.modules}} or "nothing", ended.code, file=sys.stderr)
"""


def test_help_imports_nothing_heavy() -> None:
    words = [sys.executable, "-c", HELP]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stderr.splitlines() == [f"{name} nothing 0" for name in COMMANDS]
