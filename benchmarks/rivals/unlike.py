"""Microbatches that differ: our schedules, schedules with microbatches in the given order, and
DynaPipe's.

The environment variable ``PIPELOOM_DYNAPIPE`` names a folder with a copy of DynaPipe's package; if
it is not set, DynaPipe is left out. ``PIPELOOM_TRACE`` is the file of a measured run, from which
four batches of the size ``large`` are taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time

from pipeloom import Schedule, build_family, solve
from pipeloom.solver import objective_cost

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain, violations
from .batches import COUNT, TRACED, batch
from .dynapipe import cost_of, dynapipe

PART, SEED, WORK = "unlike", 18, 200.0
"""The work limit of a solve, in millions of simulated ops, corresponds to about two CPU seconds."""
SAME = 1 + 1e-6
OTHERS = ("1f1b", "zb-h1", "mean", "dynapipe")


def cases(size: Size) -> Iterator[Case]:
    drawn = COUNT - TRACED
    for number in range({"small": 6, "usual": drawn, "large": COUNT}[size]):
        yield Case(PART, f"batch {number}", {"number": number})


def measure(case: Case) -> Row:
    """The cost by method, or None if its schedule does not fit in memory.

    ``mean``: the order of a schedule that was optimized for average microbatches, used for the
    actual ones.
    """
    trace, folder = os.environ.get("PIPELOOM_TRACE"), os.environ.get("PIPELOOM_DYNAPIPE")
    words, problem = batch(case.given["number"], SEED, None if trace is None else Path(trace))
    began = process_time()
    ours = solve(problem, work_limit=WORK)
    seconds = process_time() - began
    stages = tuple(replace(stage, each=()) for stage in problem.profile.stages)
    mean = replace(problem, profile=replace(problem.profile, stages=stages))
    orders = {"mean": solve(mean, work_limit=WORK).order}
    for name in ("1f1b", "zb-h1"):
        orders[name] = build_family(name, problem.profile, problem.microbatches).order
    others = {name: cost_of(Schedule(problem, order)) for name, order in orders.items()}
    if folder is not None:
        others["dynapipe"] = dynapipe(problem, Path(folder))
    bound = ours.known_report.known_bound
    return {
        "words": words,
        "shape": [problem.ranks, problem.microbatches],
        "work_limit": WORK,
        "ours": objective_cost(ours),
        **others,
        "lower_bound": bound,
        "gap": max(0.0, 1 - bound / objective_cost(ours)),
        "cpu_seconds": round(seconds, 2),
        "faults": violations(ours),
    }


def shorter(row: Row) -> float:
    """The relative saving of our schedule: 1 - our cost / the lowest cost of the other methods."""
    costs = [row[name] for name in OTHERS if row.get(name) is not None]
    return float(1 - row["ours"] / min(costs))


def judge(rows: Rows) -> Iterator[Claim]:
    by, gaps = list(map(shorter, rows)), [row["gap"] for row in rows]
    good = sum(each >= 1 - SAME for each in by)
    words = (
        f"Microbatches that differ: {sum(gap <= SAME - 1 for gap in gaps)} of {len(rows)} "
        f"schedules are proven optimal; the median gap is {median(gaps):.1%}, the largest "
        f"{max(gaps):.1%}. {good} steps are no longer than those of 1F1B, ZB-H1 and DynaPipe; the "
        f"median is {median(by):.1%} shorter than the best of them."
    )
    yield Claim(PART, words, good == len(rows) and not any(row["faults"] for row in rows))
    for name in OTHERS:
        own = [row for row in rows if row.get(name) is not None]
        less = median(1 - row["ours"] / row[name] for row in own) if own else 0.0
        yield Claim(PART, f"{name} fits in {len(own)} batches; ours is {less:.1%} shorter there.")


columns = {
    PART: Table(
        *plain({"batch": "case", "lengths": "words"}),
        Column("P x M", lambda row: "{} x {}".format(*row["shape"])),
        *plain(" ".join(("ours", *OTHERS)), ".1f"),
        Column("shorter by", shorter, ".1%"),
        *plain("gap", ".2%"),
    )
}
