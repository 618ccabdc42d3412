"""``--placement auto`` beside each placement by itself, in equal time or with equal work."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..recording import record
from .race import CASES, Budget, above, cell, excess, table

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Runs, prints and records the comparison; 1 where auto is above the best of them."""
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
        for share in case.shares:
            cells.append(cell(case, share, budget))
            print(f"{case.name}, {share:g} P M_B: {_words(excess(cells[-1]))}", flush=True)
    print(*table(cells), sep="\n")
    worse = [each for each in cells if above(each, budget)]
    print(f"{len(cells)} cells, {len(worse)} of them above the best single placement")
    name = "seconds" if args.work is None else "work"
    budgeted = {name: args.work if args.work is not None else args.seconds}
    print(f"recorded in {record(HERE, name, {'budget': budgeted, 'cells': cells})}")
    return 1 if worse else 0


def _words(over: float | None) -> str:
    if over is None:
        return "no placement fits"
    return f"auto is {abs(over):.3%} {'above' if over > 0 else 'below'} the best single placement"
