"""Random checks: the options of their commands, and their records."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.environment import environment


def today() -> int:
    """A seed that is new each day."""
    return int(f"{datetime.now(UTC):%Y%m%d}")


def parser_of(module: str, about: str | None, count: int) -> argparse.ArgumentParser:
    """The parser of ``python -m MODULE``, which tries ``count`` cases by default."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--seed", type=int, default=today(), help="today's date by default")
    parser.add_argument("--count", type=int, default=count, help="how many cases")
    return parser


def record(folder: Path, result: dict[str, Any]) -> Path:
    """Writes ``result`` with its origin to ``folder/record.json``."""
    path = folder / "record.json"
    path.write_text(json.dumps({"environment": environment(), **result}, indent=1) + "\n")
    return path
