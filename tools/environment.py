"""The origin of recorded results: the machine, the commit, and hashes of the library's code."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pipeloom

from .size import is_string

PACKAGES = ("numpy", "numba", "ortools", "pulp", "torch")
ROOMS = ("ir", "solver", "compiler", "runtime", "planner", "report", "cli")
_LIBRARY = Path(pipeloom.__file__).parent


def environment() -> dict[str, Any]:
    """The origin of a measurement made now, as a dictionary for JSON.

    It contains :func:`machine`, the date, the load average of the last minute, the commit (with
    ``+`` if there are uncommitted changes) and, for each folder of the library, a hash of its code
    that does not depend on comments and docstrings.
    """
    found = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit()}
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    rooms = {room: _hash(_LIBRARY / room) for room in ROOMS}
    return found | {"load": load} | machine() | {"rooms": rooms}


def machine() -> dict[str, str]:
    """The processor, the Python version, and the versions of those :data:`PACKAGES` that are
    installed."""
    found = {"cpu": _cpu(), "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _commit() -> str | None:
    """The commit of the measured library, or None if it is not in a git checkout."""
    try:
        return _git("rev-parse", "--short=12", "HEAD") + "+" * bool(_git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    command = ["git", "-C", str(_LIBRARY.resolve()), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@cache
def _hash(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.resolve().rglob("*.py")):
        found.update(code(path.read_text(encoding="utf-8")).encode())
    return found.hexdigest()[:12]


def code(source: str) -> str:
    """The syntax tree of ``source`` as text, without docstrings (strings that are statements)."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for body in (part for part in vars(node).values() if isinstance(part, list)):
            body[:] = [each for each in body if not is_string(each)]
    return ast.dump(tree)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else platform.machine()
