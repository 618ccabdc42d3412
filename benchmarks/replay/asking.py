"""Calls the optimizer for a question with six seeds, or builds a family, in this process."""

from __future__ import annotations

import hashlib
import json
from time import process_time
from typing import Any

from pipeloom import InfeasibleError, InputError, build, dump_schedule, optimize, verify_schedule
from pipeloom.ir import Problem, Schedule
from pipeloom.solver import lower_bounds

from .instances import Family, Question

SEEDS = range(6)
ORDER = ("order", "pairs", "transfers", "averages")
"""The keys of a schedule file that determine what runs when."""


def ask(asked: Question | Family) -> dict[str, Any]:
    """The row of a question or a family. ``seconds`` is CPU time."""
    began = process_time()
    found = _built(asked) if isinstance(asked, Family) else _solved(asked)
    seconds = round(process_time() - began, 2)
    return {"profile": _digest(asked.profile)} | found | {"seconds": seconds}


def _built(asked: Family) -> dict[str, Any]:
    try:
        return {"order": _order(build(asked.family, asked.profile, asked.microbatches))}
    except (InputError, InfeasibleError) as error:
        return {"order": f"{type(error).__name__}: {error}"}


def _solved(asked: Question) -> dict[str, Any]:
    """The results of a question as lists, one entry per seed. ``bounds``: the value of each lower
    bound by name."""
    rows = [_solve(asked, seed) for seed in SEEDS]
    schedules = [schedule for _, schedule in rows]
    found: dict[str, Any] = {key: [row.get(key) for row, _ in rows] for key in rows[0][0]}
    found["order"] = _digest([_order(each) if each else None for each in schedules])
    if schedules[0] is not None and not asked.chosen:
        found["bounds"] = bounds(schedules[0].problem)
    return found


def _solve(asked: Question, seed: int) -> tuple[dict[str, Any], Schedule | None]:
    """A pair for one seed: the status with the figures of the result, and the schedule; None if
    there is no schedule."""
    limits: dict[str, Any] = {"work_limit": asked.work, "seed": seed}
    try:
        found = optimize(asked.profile, asked.microbatches, **asked.options, **limits)
    except InfeasibleError as error:
        return {"status": "infeasible", "smallest": error.smallest}, None
    except InputError:
        return {"status": "refused"}, None
    except Exception as error:
        return {"status": "crash", "error": repr(error)}, None
    cost = found.cost if found.step is None else found.step
    valid = not verify_schedule(found.document)
    status, proven = found.status if valid else "invalid", _rounded(found.lower_bound or 0.0)
    words = {"status": status, "cost": _rounded(cost), "proven": proven, "method": found.method}
    return words | {"bound": found.schedule.known_report.bound}, found.schedule


def bounds(problem: Problem) -> dict[str, float]:
    """The lower bounds that the solver computes without a search: for each name the highest."""
    rising = sorted(lower_bounds(problem), key=lambda bound: bound.value)
    return {bound.name: _rounded(bound.value) for bound in rising}


def _order(schedule: Schedule) -> str:
    document = dump_schedule(schedule)
    return _digest({key: document.get(key) for key in ORDER})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _rounded(value: float) -> float:
    return float(f"{value:.10g}")
