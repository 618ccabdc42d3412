"""Small problems of every kind: no bound exceeds the optimum or the cost of a known schedule.

Problems have at most 12 (stage, microbatch) pairs, except one kind with up to 96 and extreme
magnitudes. Warnings are errors. Every bound is checked; on every eighth problem also bounds by
search, and certificates.

The optimum is that of the oracle in ``tests/support``, which shares nothing with the solver and
leaves some undecided. Costs may exceed it; the record counts these.
"""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from time import perf_counter

from pipeloom.planner import Workers, processes_here
from tests.support.recorded import record

from .checks import CEILING, Found, check
from .instances import KINDS

COUNT = 10_000
NODES = 3_000
"""Number of partial orders after which the oracle leaves a problem undecided."""
WORK_LIMIT = 0.1
"""In millions of simulated ops: enough for the first schedules."""
DEEP, DEEP_EVERY = 100.0, 24
"""Factor on the work limit for every 24th problem, so that the solver searches bounds."""
SEARCHED_EVERY = 8
"""Bounds by search and certificates are checked for every eighth problem."""


def checked(seed: int) -> Found:
    """Check the problem of a seed."""
    turn, at = divmod(seed, len(KINDS))
    work = WORK_LIMIT * (1.0 if turn % DEEP_EVERY else DEEP)
    every = turn % SEARCHED_EVERY == 0
    return check(list(KINDS)[at], seed, work, NODES, every_bound=every)


def faults(one: Found) -> list[str]:
    return [f"{one.kind}, seed {one.seed}: {line}" for line in one.wrong]


def summary(found: list[Found]) -> dict[str, dict[str, int]]:
    """Counts by kind of problem."""
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
    return (one.cost or 0.0) > (one.optimum or 0.0) * (1 + CEILING)


def main(arguments: list[str]) -> int:
    """Check, print and record a whole run; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    parser.add_argument("--count", type=int, default=COUNT, help="fewer are not recorded")
    options = parser.parse_args(arguments)
    print(f"--seed {options.seed} --count {options.count}", flush=True)
    began, found = perf_counter(), []
    seeds = range(options.seed, options.seed + options.count)
    with Workers(processes_here()) as workers:
        for _, one in workers.run(checked, seeds):
            found.append(one)
            for line in faults(one):
                print(line, flush=True)
    wrong = [line for one in found for line in faults(one)]
    result = {"seed": options.seed, "count": options.count, "kinds": summary(found), "wrong": wrong}
    result["seconds"] = round(perf_counter() - began, 1)
    print("\n".join(f"{key}: {value}" for key, value in result.items()))
    if options.count >= COUNT:
        print(f"recorded in {record(Path(__file__).parent, result)}")
    return int(bool(wrong))
