"""The weight-passing families beside what is published, and the optimizer beside the families."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ..recording import record
from . import optimized, published
from .bubbles import measure
from .sent import counts
from .table import render, render_counts, render_optimized

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """All parts, or one; 1 where equal times do not give the formula or a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weipipe", description=__doc__)
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--bubbles", action="store_true", help="bubbles and bytes alone")
    parts.add_argument("--published", action="store_true", help="throughput and memory alone")
    parts.add_argument("--optimized", action="store_true", help="the optimizer alone, some minutes")
    given = parser.parse_args(arguments)
    chosen = [name for name in PARTS if getattr(given, name)] or PARTS
    return max(PARTS[name]() for name in chosen)


def _optimized() -> int:
    rows = optimized.measure()
    print(render_optimized(rows))
    print(f"recorded in {record(HERE, 'optimized', {'rows': rows})}")
    return 1 if any(map(optimized.missed, rows)) else 0


def _bubbles() -> int:
    rows, sent = measure(), counts()
    print(f"{render(rows)}\n\n{render_counts(sent)}")
    print(f"recorded in {record(HERE, 'weipipe', {'rows': rows, 'sent': sent})}")
    wrong = [row for row in rows if row["equal"] and not row["as_formula"]]
    return 1 if wrong else 0


PARTS: dict[str, Callable[[], int]] = {
    "bubbles": _bubbles,
    "published": lambda: published.run(HERE),
    "optimized": _optimized,
}
