"""``--placement auto`` beside each placement by itself, in equal time or with equal work."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..recording import record
from .race import CASES, SHARES, Budget, above, cell, table

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Runs, prints and records the comparison; 1 where a placement by itself is found a better schedule."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placements", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="that auto has in all, and each placement alone"
    )
    parser.add_argument(
        "--work",
        type=float,
        help="instead: millions of simulated ops that each placement has, alone and in auto",
    )
    args = parser.parse_args(arguments)
    budget = Budget(args.seconds, args.work)
    cells = []
    for case in CASES:
        for share in SHARES:
            cells.append(cell(case, share, budget))
            print(table(cells[-1:])[-1], flush=True)
    worse = [each for each in cells if above(each, budget)]
    print(f"{len(cells)} cells, {len(worse)} of them above the best single placement")
    name = "seconds" if args.work is None else "work"
    budgeted = {name: args.work if args.work is not None else args.seconds}
    print(f"recorded in {record(HERE, name, {'budget': budgeted, 'cells': cells})}")
    return 1 if worse else 0
