"""Microbatches that differ: our schedules against the order given and DynaPipe's scheduler."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.core.schedule_cost import objective_cost, within_memory
from pipeloom.solver.core.unlike import typical
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize

from ..recording import record
from ..spreading import add_workers, spread
from .dynapipe import dynapipe
from .instances import COUNT, Instance, instances

HERE = Path(__file__).parent
SEED = 18
WORK_LIMIT = 200.0
"""Millions of simulated ops, some two seconds of a core."""
SAME = 1 + 1e-6


def main(arguments: list[str]) -> int:
    """Solves, prints and records; 1 where another schedule is shorter or ours is not valid."""
    options = _options(arguments)
    found = list(_solved(options))
    result = summary([row for _, row in found])
    result |= {"seed": options.seed, "work_limit": options.work_limit}
    result |= {"instances": [row for _, row in found]}
    print("\n".join(f"{key}: {value}" for key, value in result.items() if key != "instances"))
    if len(found) == COUNT and options.dynapipe is not None:
        print(f"recorded in {record(HERE, 'unlike', result)}")
    return 1 if result["at_least_as_good"] < len(found) or result["faults"] else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unlike", description=__doc__)
    parser.add_argument(
        "--trace", type=Path, help="the file of the measured run; its four are left out without"
    )
    parser.add_argument(
        "--dynapipe", type=Path, help="the folder of its package; left out without, not recorded"
    )
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--only", type=int, nargs="+", default=range(COUNT), help="numbers of instances"
    )
    parser.add_argument(
        "--work-limit", type=float, default=WORK_LIMIT, help="millions of simulated ops a solve"
    )
    add_workers(parser)
    return parser.parse_args(arguments)


def _solved(options: argparse.Namespace) -> Iterator[tuple[Instance, dict[str, Any]]]:
    tasks = [each for each in instances(options.seed, options.trace) if each.number in options.only]
    solve = partial(compared, work_limit=options.work_limit, folder=options.dynapipe)
    for instance, row in spread(options, solve, tasks):
        print({key: row[key] for key in ("number", "shape", "words", "shorter", "gap")}, flush=True)
        yield instance, row


def compared(instance: Instance, work_limit: float, folder: Path | None) -> dict[str, Any]:
    """Costs by who made the schedule, None where memory does not hold it."""
    problem, began = instance.problem, process_time()
    ours = optimize(problem, work_limit=work_limit)
    seconds = process_time() - began
    others = {name: _family(problem, name) for name in ("1f1b", "zb-h1")}
    others["mean"] = _from_mean(problem, work_limit)
    if folder is not None:
        others["dynapipe"] = dynapipe(problem, folder)
    bound = ours.known_report.known_bound
    cost, best = objective_cost(ours), min(cost for cost in others.values() if cost is not None)
    return {
        "number": instance.number,
        "words": instance.words,
        "shape": [problem.ranks, problem.microbatches],
        "ours": cost,
        **others,
        "shorter": 1 - cost / best,
        "lower_bound": bound,
        "gap": max(0.0, 1 - bound / cost),
        "cpu_seconds": round(seconds, 2),
        "faults": verify_schedule(dump_schedule(ours)),
    }


def _family(problem: Problem, name: str) -> float | None:
    profile, limit = problem.profile, problem.memory_limit[0]
    try:
        built = build_family(name, profile, problem.microbatches, memory_limit=limit)
    except InfeasibleError:
        return None
    return objective_cost(built)


def _from_mean(problem: Problem, work_limit: float) -> float | None:
    """Our schedule of the mean microbatch, run by these ones as they are numbered."""
    planned = optimize(typical(problem), work_limit=work_limit)
    schedule = Schedule(problem, planned.order)
    timing = simulate(schedule)
    if not within_memory(problem, timing):
        return None
    return objective_cost(Schedule(problem, planned.order, timing=timing))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How much shorter our steps are than the best of the others, and the gaps."""
    gaps, shorter = [row["gap"] for row in rows], [row["shorter"] for row in rows]
    return {
        "at_least_as_good": sum(by >= 1 - SAME for by in shorter),
        "median_shorter": median(shorter),
        "least_shorter": min(shorter),
        "median_gap": median(gaps),
        "worst_gap": max(gaps),
        "optimal": int(np.sum(np.array(gaps) <= SAME - 1)),
        "median_cpu_seconds": median(row["cpu_seconds"] for row in rows),
        "faults": [fault for row in rows for fault in row["faults"]],
    }
