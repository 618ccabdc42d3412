"""One row: each figure built or solved, verified, timed by the simulator, beside the published
one."""

from __future__ import annotations

import time
from typing import Any

from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize

from .rows import Row
from .wrap import published_makespan

FAMILIES = ("1f1b", "zb-h1", "zb-h2")
OPTIMIZED = {"zb-1p": 1.0, "zb-2p": 2.0}  # the limit as a multiple of P x M_B


def compare(row: Row, time_limit: float, seed: int) -> dict[str, Any]:
    """Own and published bubble rates (of the period) of one row, as JSON."""
    cells = {name: _family(row, name) for name in FAMILIES}
    cells |= _interleaved(row)
    cells |= {name: _optimized(row, name, time_limit, seed) for name in OPTIMIZED}
    return {
        "model": row.model,
        "ranks": row.profile.ranks,
        "microbatches": row.microbatches,
        "cells": cells,
    }


def _cell(row: Row, name: str, rate: float, **more: object) -> dict[str, Any]:
    """``worse`` only from the fourth digit on, which is all that is published."""
    published = row.published[name]
    worse = round(rate, 4) > published
    return {"published": published, "own": rate, "worse": worse, **more}


def _rate(schedule: Schedule) -> float:
    """The bubble rate of the period. Raises InvalidScheduleError where the verifier objects."""
    violations = verify_schedule(dump_schedule(schedule))
    if violations:
        raise InvalidScheduleError(violations)
    return schedule.known_timing.bubble_rate(Objective.PERIOD)


def _family(row: Row, name: str) -> dict[str, Any]:
    return _cell(row, name, _rate(build_family(name, row.profile, row.microbatches)))


def _interleaved(row: Row) -> dict[str, dict[str, Any]]:
    """The figures by the published rule for chunks, and by the contract's, which is stricter."""
    name = "interleaved-1f1b"
    schedule = build_family(f"{name}:{row.chunks}", row.profile, row.microbatches)
    makespan = published_makespan(schedule)
    rate = 1.0 - schedule.known_timing.work / (row.profile.ranks * makespan)
    strict = _cell(row, name, _rate(schedule)) | {"worse": False}  # not what is published
    return {f"{name}, as published": _cell(row, name, rate), f"{name}, every boundary": strict}


def _optimized(row: Row, name: str, time_limit: float, seed: int) -> dict[str, Any]:
    problem = Problem.linear(row.profile, row.microbatches, row.limit(OPTIMIZED[name]))
    begin = time.perf_counter()
    schedule = optimize(problem, time_limit=time_limit, seed=seed)
    seconds = time.perf_counter() - begin
    timing, report = schedule.known_timing, schedule.known_report
    bound = report.lower_bound
    least = None if bound is None else 1.0 - timing.work / (row.profile.ranks * bound)
    return _cell(
        row,
        name,
        _rate(schedule),
        bound=least,
        bound_name=report.bound,
        status=report.status.value,
        seconds=seconds,
    )
