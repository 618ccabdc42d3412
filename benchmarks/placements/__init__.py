"""Plain ``optimize``, which chooses the placement, beside each placement by itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean

from ..markdown import markdown
from ..recording import record
from ..spreading import add_workers, spread
from .cells import MOST, MOST_MEAN, NUMBER, Cell, cell, excess

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Runs, prints and records the comparison; 1 where plain ``optimize`` loses too much."""
    args = _parsed(arguments)
    found: dict[int, Cell] = {}
    run = partial(cell, args.seed, seconds=args.seconds, runs=args.runs)
    for number, one in spread(args, run, range(args.number)):
        found[number] = one
        print(f"{one['profile']}: {excess(one):+.3%}", flush=True)
    cells = [found[number] for number in sorted(found)]
    print(*markdown(HEADS, map(_line, cells)), sep="\n")
    above = [excess(one) for one in cells]
    print(f"worse by at most {max(above):.2%}, by {mean(above):.2%} in the mean")
    asked = {"seed": args.seed, "seconds": args.seconds, "runs": args.runs}
    print(f"recorded in {record(HERE, 'placements', asked | {'cells': cells})}")
    return 1 if max(above) > MOST or mean(above) > MOST_MEAN or any(_faults(cells)) else 0


HEADS = ["profile", "best placement alone", "its bubble", "plain", "its choices", "bubble", "worse"]


def _line(one: Cell) -> list[str]:
    name, cost = min(one["alone"].items(), key=lambda item: item[1])
    plain = sorted(one["plain"], key=lambda run: run["cost"])[len(one["plain"]) // 2]
    choices = ", ".join(dict.fromkeys(run["placement"] for run in one["plain"]))
    bubble, own = f"{1 - one['work'] / cost:.2%}", f"{1 - one['work'] / plain['cost']:.2%}"
    costs = f"{cost:.6g} ms", f"{plain['cost']:.6g} ms"
    return [one["profile"], f"{name}, {costs[0]}", bubble, costs[1], choices, own, _share(one)]


def _share(one: Cell) -> str:
    return f"{excess(one):+.2%}"


def _faults(cells: list[Cell]) -> Iterator[str]:
    for one in cells:
        yield from one["violations"]


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placements", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the profiles")
    parser.add_argument("--number", type=int, default=NUMBER, help="of profiles")
    parser.add_argument("--runs", type=int, default=3, help="of plain optimize, for each profile")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="for plain optimize and for each placement"
    )
    add_workers(parser)
    return parser.parse_args(arguments)
