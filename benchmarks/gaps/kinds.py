"""Gaps between the best schedule found and the proven lower bound, by kind of problem.

There are ten instances of each kind. Each is solved with a limit of 30 seconds, and again with a
limit on work, which gives the same result on a busy machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeloom import solve

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part, plain, violations
from .instances import KINDS, RANKS, problem_of

BY_TIME, BY_WORK = "kinds", "kinds by work"
LIMITS: dict[str, dict[str, Any]] = {BY_TIME: {"time_limit": 30.0}, BY_WORK: {"work_limit": 400.0}}
SEED = 17
TARGETS = {"median": 0.01, "nine of ten": 0.03, "worst": 0.05}


def cases(size: Size) -> Iterator[Case]:
    for part in LIMITS:
        for kind in KINDS:
            for number in range(len(RANKS)):
                if size != "small" or (part, number, kind[0]) == (BY_WORK, 0, "r"):
                    given = {"kind": kind, "number": number}
                    yield Case(part, f"{kind} {number}", given, timed=part == BY_TIME)


def measure(case: Case) -> Row:
    """The cost, the lower bound, and the gap between them."""
    kind, number = case.given["kind"], case.given["number"]
    problem = problem_of(kind, number, SEED)
    schedule = solve(problem, **LIMITS[case.part])
    report, cost = schedule.known_report, schedule.known_timing.cost(problem.objective)
    return {
        "kind": kind,
        **LIMITS[case.part],
        "cost": cost,
        "bound": report.known_bound,
        "bound_name": report.bound,
        "gap": 1 - report.known_bound / cost,
        "violations": violations(schedule),
    }


def figures(rows: Rows) -> dict[str, float]:
    """The median gap of the rows, the 90th percentile ("nine of ten") and the largest gap
    ("worst"), by these names."""
    gaps = sorted(row["gap"] for row in rows)
    nine = gaps[int(np.ceil(0.9 * len(gaps))) - 1]
    return {"median": float(np.median(gaps)), "nine of ten": nine, "worst": gaps[-1]}


def judge(rows: Rows) -> Iterator[Claim]:
    for part, limit in ((BY_TIME, "30 s on two cores"), (BY_WORK, "400 million simulated ops")):
        if own := of_part(rows, part):
            found = figures(own)
            wrong = sum(bool(row["violations"]) for row in own)
            words = (
                f"Of {len(own)} instances with 4 to 16 ranks (several stages per rank, two copies, "
                "recomputation, offload, little memory or shared links), half are within "
                f"{found['median']:.1%} of a proven bound after {limit}, nine of ten within "
                f"{found['nine of ten']:.1%}, and all within {found['worst']:.1%}."
            )
            yield Claim(part, words, not wrong, part.replace(" ", "-"))
            yield from _missed(part, own)


def _missed(part: str, rows: Rows) -> Iterator[Claim]:
    """Yield one claim, which is met if no kind exceeds a target. Its text lists the targets, and
    the kinds whose gaps exceed them."""
    over = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        found = figures([row for row in rows if row["kind"] == kind])
        over += [f"{kind} ({name})" for name, value in found.items() if value > TARGETS[name]]
    targets = ", ".join(f"{name} {value:.0%}" for name, value in TARGETS.items())
    words = f"Targets for the gaps of each kind: {targets}; exceeded: {', '.join(over) or 'none'}."
    yield Claim(part, words, not over)


def _figure(name: str) -> Column:
    return Column(name, lambda rows: figures(rows)[name], ".2%")


_TABLE = Table(
    *plain("kind"),
    Column("instances", len),
    *map(_figure, TARGETS),
    by=lambda row: row["kind"],
    total=True,
)
columns = {BY_TIME: _TABLE, BY_WORK: _TABLE}
