"""The record of a random check: its counts and faults, and where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.environment import environment


def record(folder: Path, result: dict[str, Any]) -> Path:
    """Writes ``result`` with its origin to ``folder/record.json``."""
    path = folder / "record.json"
    path.write_text(json.dumps({"environment": environment(), **result}, indent=1) + "\n")
    return path
