"""``python -m benchmarks.frontier.cell SET NAME TIME_LIMIT SEED``: one instance, solved and
verified.

A process of its own for each, so that no cell profits from another one's warm state and peak
memory is its own. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from time import perf_counter
from typing import Any

from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.optimize import optimize

from .instances import SETS


def measure(problem: Problem, solver: str, time_limit: float, seed: int) -> dict[str, Any]:
    """The figures of one solve: seconds and peak memory are those of ``optimize`` alone.

    ``cpu_seconds``, those of all threads and of CBC, tell of a machine that others used too.
    """
    begin, computed = perf_counter(), _cpu_seconds()
    schedule = optimize(problem, solver=solver, time_limit=time_limit, seed=seed)
    seconds, computed = perf_counter() - begin, _cpu_seconds() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    violations = verify_schedule(dump_schedule(schedule))
    return {
        **figures(schedule),
        "seconds": seconds,
        "cpu_seconds": computed,
        "peak_rss": peak,
        "violations": len(violations),
    }


def _cpu_seconds() -> float:
    """CPU time of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def figures(schedule: Schedule) -> dict[str, Any]:
    problem, timing, report = schedule.problem, schedule.known_timing, schedule.known_report
    cost = timing.cost(problem.objective)
    bound = report.known_bound
    return {
        "ranks": problem.ranks,
        "microbatches": problem.microbatches,
        "memory_limit": problem.memory_limit[0],
        "cost": cost,
        "lower_bound": bound,
        "gap": max(0.0, (cost - bound) / cost),
        "bubble": timing.bubble_rate(problem.objective),
        "bound_bubble": 1.0 - timing.work / (problem.ranks * bound),
        "bound_name": report.bound,
        "status": report.status.value,
        "family": report.family,
    }


def main(arguments: list[str]) -> int:
    set_name, name, time_limit, seed = arguments
    instance = next(each for each in SETS[set_name]() if each.name == name)
    print(json.dumps(measure(instance.problem, instance.solver, float(time_limit), int(seed))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
