"""Small problems of every kind: what the optimizer finds is the optimum, and it proves so."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Status
from pipeloom.solver.optimize import optimize
from tests.support.oracle import TooManyOrdersError, exhaustive_optimum
from tests.support.weight_oracle import least_makespan

from ..recording import record
from ..spreading import add_workers, spread
from .instances import KINDS, problem_of

HERE = Path(__file__).parent
COUNT = 2000
SECONDS = 5.0
NODES = 1_000_000
"""Beginnings of orders that the oracle looks at before it leaves a problem undecided."""
EQUAL = 1e-7
"""Relative: what rounding may add to a sum of times."""
CEILING = 1e-6
"""Relative: how much above the cost that was found the oracle looks for schedules."""


@dataclass(frozen=True, slots=True)
class Found:
    """``optimum``: the oracle's; None where it was undecided. ``wrong``: what it contradicts."""

    kind: str
    seed: int
    cost: float
    proven: bool
    seconds: float
    optimum: float | None
    wrong: str | None


def main(arguments: list[str]) -> int:
    """Checks, prints and records; 1 where anything is above its optimum, or wrong."""
    options = _options(arguments)
    print(f"--seed {options.seed} --count {options.count}", flush=True)
    began = perf_counter()
    found = list(_solved(options))
    result = {"seed": options.seed, "count": options.count, "time_limit": options.seconds}
    result |= {"seconds": round(perf_counter() - began, 1), "kinds": summary(found)}
    wrong = [f"{one.kind}, seed {one.seed}: {one.wrong}" for one in found if one.wrong]
    print("\n".join([*(f"{kind}: {row}" for kind, row in result["kinds"].items()), *wrong]))
    if options.count >= COUNT:
        print(f"recorded in {record(HERE, 'small', result | {'wrong': wrong})}")
    return int(bool(wrong))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_exact", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30), help="of the first")
    parser.add_argument("--count", type=int, default=COUNT, help="problems, the kinds in turn")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each at most")
    add_workers(parser)
    return parser.parse_args(arguments)


def _solved(options: argparse.Namespace) -> Iterator[Found]:
    seeds = range(options.seed, options.seed + options.count)
    asked = list(zip(cycle(KINDS), seeds, strict=False))
    for _, one in spread(options, partial(_one, options.seconds), asked):
        if one is not None:
            yield one


def _one(seconds: float, asked: tuple[str, int]) -> Found | None:
    return solved(*asked, seconds)


def solved(kind: str, seed: int, seconds: float) -> Found | None:
    """The optimizer's answer held against the oracle's; None where no schedule is valid."""
    problem, began = problem_of(kind, seed), perf_counter()
    try:
        schedule = optimize(problem, time_limit=seconds)
    except InfeasibleError:
        return None
    took = perf_counter() - began
    report, timing = schedule.known_report, schedule.known_timing
    cost, bound = timing.cost(problem.objective), report.lower_bound or 0.0
    proven = report.status is Status.OPTIMAL
    optimum = least(problem, cost)
    wrong = None if optimum is None else _contradicted(cost, bound, optimum)
    return Found(kind, seed, cost, proven, took, optimum, wrong)


def least(problem: Problem, cost: float) -> float | None:
    """The oracle's optimum, which looks no further than just above ``cost``; None: undecided."""
    if problem.placement.passing is Passing.WEIGHTS:
        return least_makespan(problem)
    try:
        return exhaustive_optimum(problem, ceiling=cost * (1 + CEILING), nodes=NODES)
    except TooManyOrdersError:
        return None


def _contradicted(cost: float, bound: float, optimum: float) -> str | None:
    if cost > optimum * (1 + EQUAL):
        return f"cost {cost!r}, the optimum is {optimum!r}"
    if cost < optimum * (1 - EQUAL):
        return f"cost {cost!r} below the optimum {optimum!r}"
    if bound > optimum * (1 + EQUAL):
        return f"bound {bound!r} above the optimum {optimum!r}"
    return None


def summary(found: list[Found]) -> dict[str, dict[str, Any]]:
    """Counts and seconds by kind."""
    rows = {}
    for kind in KINDS:
        own = [one for one in found if one.kind == kind]
        seconds = sorted(one.seconds for one in own) or [0.0]
        rows[kind] = {
            "problems": len(own),
            "above the optimum": sum(bool(one.wrong) for one in own),
            "proven": sum(one.proven for one in own),
            "oracle undecided": sum(one.optimum is None for one in own),
            "median seconds": round(median(seconds), 3),
            "longest": round(seconds[-1], 2),
        }
    return rows
