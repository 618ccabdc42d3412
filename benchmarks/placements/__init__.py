"""``--placement auto`` beside each placement by itself, with equal time for each or with equal
work."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..recording import record, recorded
from ..spreading import add_workers, spread
from .cells import CASES, Budget, above, cell, excess, table

HERE = Path(__file__).parent
EVERY = [(case, share) for case in CASES for share in case.shares]


def main(arguments: list[str]) -> int:
    """Runs, prints and records the comparison; 1 where auto is above the best of them."""
    args = _parsed(arguments)
    budget = Budget(args.seconds, args.work)
    name = "seconds" if args.work is None else "work"
    budgeted = {name: args.work if args.work is not None else args.seconds}
    first, last = args.cells
    cells = _recorded(name, budgeted) if (first, last) != (0, len(EVERY) - 1) else {}
    asked = [(case.name, share) for case, share in EVERY[first : last + 1]]
    for (case, share), found in spread(args, partial(_cell, budget), asked):
        cells[case, share] = found
        ordered = [cells[key] for each, at in EVERY if (key := (each.name, at)) in cells]
        path = record(HERE, name, {"budget": budgeted, "cells": ordered})
        print(f"{case}, {share:g} P M_B: auto is {_words(excess(found))}", flush=True)
    print(*table(ordered), sep="\n")
    print(*_summary(ordered, budget), sep="\n")
    print(f"recorded in {path}")
    return 1 if any(above(each, budget) for each in ordered) else 0


def _cell(budget: Budget, asked: tuple[str, float]) -> dict[str, Any]:
    name, share = asked
    return cell(next(case for case in CASES if case.name == name), share, budget)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placements", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="that each placement has, alone and within auto"
    )
    parser.add_argument(
        "--work",
        type=float,
        help="instead: millions of simulated ops that each placement has, alone and in auto",
    )
    parser.add_argument(
        "--cells",
        type=_cells,
        default=(0, len(EVERY) - 1),
        metavar="A-B",
        help=f"those alone, of 0-{len(EVERY) - 1}; the others stay as recorded with the same "
        "budget",
    )
    add_workers(parser)
    return parser.parse_args(arguments)


def _cells(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and int(first) <= int(last) < len(EVERY)):
        raise argparse.ArgumentTypeError(f"expected A-B within 0-{len(EVERY) - 1}, got {text!r}")
    return int(first), int(last)


def _recorded(name: str, budget: dict[str, float]) -> dict[tuple[str, float], dict[str, Any]]:
    """The cells recorded so far with the same budget."""
    known = recorded(HERE, name)
    if known.get("budget") != budget:
        return {}
    return {(each["case"], each["share"]): each for each in known["cells"]}


def _summary(cells: Sequence[dict[str, Any]], budget: Budget) -> list[str]:
    lines = [f"{len(cells)} cells, against the best single placement:"]
    for what in ("auto", "again", "shared") if budget.work is None else ("auto",):
        over = [found for each in cells if (found := excess(each, what)) is not None]
        worse = sum(found > 5e-4 for found in over)
        better = sum(found < -5e-4 for found in over)
        lines.append(
            f"  {what}: {worse} above it by more than .05 %, at most {max(over, default=0.0):.3%}; "
            f"{better} below it"
        )
    return lines


def _words(over: float | None) -> str:
    if over is None:
        return "not there: no placement fits"
    return f"{abs(over):.3%} {'above' if over > 0 else 'below'} the best single placement"
