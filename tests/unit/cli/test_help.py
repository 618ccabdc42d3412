"""Every command explains itself, quickly: nothing heavy is imported for that."""

from __future__ import annotations

import subprocess
import sys

from pipeloom import __version__
from tests.support.command_line import ENVIRONMENT, Command
from tests.support.inner import COMMANDS

HEAVY = ("numpy", "numba", "ortools", "pulp", "networkx", "pydantic", "torch")


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom pipeloom.cli.main import COMMANDS, main\n"
        "for name in COMMANDS:\n    code = main([name, '--help'])\n"
        f"    print(name, [m for m in {HEAVY!r} if m in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    assert done.stderr.splitlines() == [f"{name} [] 0" for name in COMMANDS]


def test_the_overview_names_every_command_in_a_line(pipeloom: Command) -> None:
    for words in (["--help"], []):
        done = pipeloom(*words)
        assert done.code == 0
        for name, (_, summary) in COMMANDS.items():
            assert any(line.split() == [name, *summary.split()] for line in done.out.splitlines())


def test_version(pipeloom: Command) -> None:
    assert pipeloom("--version").out == f"pipeloom {__version__}\n"
