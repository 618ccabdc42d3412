"""Small problems of every kind: no bound is above the optimum, or a schedule that is known.

Problems have at most 12 (stage, microbatch) pairs. Each bound is checked by its own value, on each
eighth problem also those that are searched, and certificates. The optimum is that of the oracle in
``tests/support``, which shares nothing with the solver and leaves some undecided. Costs may be
above it: the record counts these.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.support.recorded import record
from tests.support.spreading import add_workers, spread

from .checks import CEILING, Found, check
from .instances import KINDS

HERE = Path(__file__).parent
COUNT = 10_000
NODES = 3_000
"""Beginnings of orders that the oracle looks at before it leaves a problem undecided."""
WORK_LIMIT = 0.1
"""Millions of simulated ops: the first schedules, and hardly more."""
DEEP, DEEP_EVERY = 100.0, 24
"""So many times as much work on every so many-th problem: bounds that the solver looks for."""
SEARCHED_EVERY = 8
"""Of the problems, how many have the bounds that are searched and the certificates checked."""


def main(arguments: list[str]) -> int:
    """Checks, prints and records; 1 where anything is wrong."""
    options = _options(arguments)
    print(f"--seed {options.seed} --count {options.count}", flush=True)
    began = perf_counter()
    found = []
    for one in _checked(options):
        found.append(one)
        for line in one.wrong:
            print(f"{one.kind}, seed {one.seed}: {line}", flush=True)
    result: dict[str, Any] = {"seed": options.seed, "count": options.count}
    result |= {"work_limit": options.work_limit, "nodes": options.nodes}
    result |= {"seconds": round(perf_counter() - began, 1), "kinds": summary(found)}
    print("\n".join(f"{kind}: {row}" for kind, row in result["kinds"].items()))
    wrong = [f"{one.kind}, seed {one.seed}: {line}" for one in found for line in one.wrong]
    if options.count >= COUNT:
        print(f"recorded in {record(HERE, result | {'wrong': wrong})}")
    return int(bool(wrong))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.property.small_exact", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30), help="of the first")
    parser.add_argument("--count", type=int, default=COUNT, help="seeds, and problems")
    parser.add_argument(
        "--work-limit", type=float, default=WORK_LIMIT, help="millions of simulated ops a solve"
    )
    parser.add_argument("--nodes", type=int, default=NODES, help="of the oracle, for each problem")
    add_workers(parser)
    return parser.parse_args(arguments)


def _checked(options: argparse.Namespace) -> Iterator[Found]:
    one = partial(checked, work_limit=options.work_limit, nodes=options.nodes)
    seeds = range(options.seed, options.seed + options.count)
    yield from (found for _, found in spread(options, one, seeds))


def checked(seed: int, work_limit: float = WORK_LIMIT, nodes: int = NODES) -> Found:
    """The check of a seed's problem."""
    turn, at = divmod(seed, len(KINDS))
    work = work_limit * (1.0 if turn % DEEP_EVERY else DEEP)
    every = turn % SEARCHED_EVERY == 0
    return check(list(KINDS)[at], seed, work, nodes, every_bound=every)


def summary(found: list[Found]) -> dict[str, dict[str, int]]:
    """Counts by kind."""
    rows = {}
    for kind in KINDS:
        own = [one for one in found if one.kind == kind]
        solved = [one for one in own if one.cost is not None]
        decided = [one for one in solved if one.optimum is not None]
        rows[kind] = {
            "problems": len(own),
            "without a schedule": len(own) - len(solved),
            "bounds": sum(one.bounds for one in own),
            "wrong": sum(bool(one.wrong) for one in own),
            "decided by the oracle": len(decided),
            "cost above the optimum": sum(map(_above, decided)),
            "proven": sum(one.proven for one in own),
        }
    return rows


def _above(one: Found) -> bool:
    assert one.cost is not None
    assert one.optimum is not None
    return one.cost > one.optimum * (1 + CEILING)
