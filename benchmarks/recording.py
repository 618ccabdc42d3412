"""Record of a benchmark: its machine and versions beside its figures, in ``results/``."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("numpy", "numba", "ortools", "pulp")


def environment() -> dict[str, str]:
    """The processor and the versions that a figure was measured with."""
    packages = {name: version(name) for name in _PACKAGES}
    return {"cpu": _cpu(), "python": platform.python_version(), **packages}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else platform.machine()


def record(folder: Path, name: str, result: dict[str, Any]) -> Path:
    """Writes ``result`` with the environment to ``folder/results/name.json``."""
    path = _path(folder, name)
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"environment": environment(), **result}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def recorded(folder: Path, name: str) -> dict[str, Any]:
    """The result that is recorded there, with its environment; empty where there is none."""
    path = _path(folder, name)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _path(folder: Path, name: str) -> Path:
    return folder / "results" / f"{name}.json"
