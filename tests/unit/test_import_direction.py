"""The folders' import direction, as far as a linter cannot check it."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ir", "solver", "compiler", "runtime", "planner", "cli", "report", "web")


def modules(folder: str) -> list[str]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    names = [path.relative_to(ROOT).with_suffix("") for path in paths]
    return [".".join(("pipeloom", *name.parts)).removesuffix(".__init__") for name in names]


def test_planning_imports_no_torch() -> None:
    """Every module outside runtime/ can be imported without torch."""
    names = [name for folder in FOLDERS if folder != "runtime" for name in modules(folder)]
    code = "import sys, importlib; sys.modules['torch'] = None\n"
    code += f"for name in {names!r}: importlib.import_module(name)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("room", ["ir", "solver", "runtime", "planner", "report", "web"])
def test_no_public_name_of_a_room_is_a_file_of_it(room: str) -> None:
    """Otherwise Python binds the name to the module once that is imported."""
    names = set(import_module(f"pipeloom.{room}").__all__)
    assert names
    assert not names & {path.stem for path in (ROOT / room).iterdir()}
