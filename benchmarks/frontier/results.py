"""The record: a file a set, a cell an instance, kept as it grows so that a run can be resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from pipeloom import __version__

from ..recording import environment, machine, record, recorded
from .instances import Instance

Cells = dict[str, dict[str, Any]]
SPARE_SECONDS = 120.0
"""For imports and for verifying what was found."""
ROOT = Path(__file__).parents[2]


def code() -> str:
    """A fingerprint of what is measured: the planner's sources."""
    digest = sha256()
    for path in sorted(p for folder in ("ir", "solver") for p in (ROOT / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def settings(instance: Instance, time_limit: float | None, seed: int) -> dict[str, Any]:
    """The settings that a recorded cell must share with a new one to stand for it."""
    return {
        "time_limit": time_limit or instance.time_limit,
        "seed": seed,
        "instance": sha256(repr(instance.problem).encode()).hexdigest()[:12],
        "version": __version__,
        "code": code(),
    }


def load(folder: Path, name: str) -> Cells:
    """The recorded cells of a set; none where nothing is recorded."""
    cells: Cells = recorded(folder, name).get("cells", {})
    return cells


def save(folder: Path, name: str, cells: Cells) -> None:
    record(folder, name, {"cells": cells})


def stands(cell: dict[str, Any] | None, wanted: dict[str, Any]) -> bool:
    """Whether a recorded cell was measured as ``wanted`` says, on a machine like this one."""
    if cell is None or cell["settings"] != wanted:
        return False
    return all(cell["environment"].get(key) == value for key, value in machine().items())


def run_cell(asked: tuple[str, Instance, dict[str, Any]]) -> dict[str, Any]:
    """Solves one instance, of a set, in a fresh process, with the settings that are wanted; a crash
    is an ``error`` in its cell."""
    set_name, instance, wanted = asked
    words = [set_name, instance.name, str(wanted["time_limit"]), str(wanted["seed"])]
    cell: dict[str, Any] = {
        "settings": wanted,
        "environment": environment(),
        "row": instance.row,
        "share": instance.share,
        "published": instance.published,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.frontier.cell", *words],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=wanted["time_limit"] * 2 + SPARE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return cell | {"error": "timed out"}
    if done.returncode != 0:
        return cell | {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return cell | found
