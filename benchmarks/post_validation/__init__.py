"""The cost of a norm of all gradients: ranks that wait for it, and ranks that step ahead of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.recording import record
from pipeloom.runtime.launch.processes import launch

from .steps import RANKS, WAYS, Case, Row, measure, table

CASES = [Case(family, 12) for family in ("1f1b", "zb-h1", "zb-h2")]


def main(arguments: list[str]) -> int:
    """Prints the table and records it; exit code 1 where stepping ahead is the slower way."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.post_validation", description=__doc__
    )
    parser.add_argument(
        "--steps", type=int, default=12, help="in a row, of each way; 12 by default"
    )
    parser.add_argument("--rounds", type=int, default=3, help="in turn; 3 by default")
    args = parser.parse_args(arguments)
    found = launch(measure, RANKS, (CASES, args.steps, args.rounds), timeout=3600)
    rows = [Row.of(case, [found[rank][i] for rank in range(RANKS)]) for i, case in enumerate(CASES)]
    print("\n".join(table(rows)))
    record(
        Path(__file__).parent,
        "post_validation",
        {
            "steps": args.steps,
            "rounds": args.rounds,
            "ways": {way.name: way.meaning for way in WAYS},
            "rows": [row.as_json() for row in rows],
        },
    )
    return 0 if all(row.seconds["ahead"] <= row.seconds["waiting"] for row in rows) else 1
