"""Checks that a report's figures follow from the order's times, its bound and status with them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..formats.json_reader import show
from .memory import MEMORY, held_at
from .schedule_facts import Facts

RELATIVE = 1e-6  # of times and of what follows from them


def verify_report(facts: Facts) -> Iterator[str]:
    """The report's figures follow from the order's times."""
    spans = [row[-1].end - row[0].start if row else 0.0 for row in facts.order]
    begin = min((run.start for run in facts.runs), default=0.0)
    makespan = max((run.end for run in facts.runs), default=0.0) - begin
    seconds = {(rank, at + 1) for rank, places in enumerate(facts.pairs) for at in places}
    work = math.fsum(
        run.end - run.start
        for run in facts.runs
        if run.kind not in ("O", "L") and (run.rank, run.at) not in seconds
    )
    peaks = [
        max([held for _, held in held_at(facts, row)] + [0.0], default=0.0) for row in facts.order
    ]
    objective = facts.report.objective
    if objective is None:
        yield "report: objective: expected period or makespan, got null"
        return
    cost = max(spans) if objective == "period" else makespan
    bubble = 1.0 - work / (facts.plan.ranks * cost) if cost > 0 else 0.0
    yield from _equal(facts, "period", max(spans))
    yield from _equal(facts, "makespan", makespan)
    yield from _equal(facts, "bubble_rate", bubble, slack=RELATIVE)
    yield from _peaks(facts, peaks)
    yield from _certificate(facts, cost)


def _equal(facts: Facts, key: str, expected: float, slack: float = 0.0) -> Iterator[str]:
    value = getattr(facts.report, key)
    if not _is_near(value, expected, slack):
        yield (
            f"report: {key}: expected {expected:.9g}, by the starts and ends of ops, got "
            f"{show(value)}"
        )


def _is_near(value: float | None, expected: float, slack: float) -> bool:
    return value is not None and math.isclose(value, expected, rel_tol=RELATIVE, abs_tol=slack)


def _peaks(facts: Facts, peaks: list[float]) -> Iterator[str]:
    values = facts.report.peak_memory
    if values is None or len(values) != len(peaks):
        yield f"report: peak_memory: expected one number a rank, got {show(values)}"
        return
    for rank, (value, peak) in enumerate(zip(values, peaks, strict=True)):
        if not _is_near(value, peak, MEMORY * max(peaks)):
            yield f"report: peak_memory: rank {rank} holds at most {peak:.9g}, got {show(value)}"


def _certificate(facts: Facts, cost: float) -> Iterator[str]:
    """The bound is below the cost, the gap follows, and only what is proven is called optimal."""
    bound, gap, status = facts.report.lower_bound, facts.report.gap, facts.report.status
    if status is None:
        yield "report: status: expected optimal or feasible, got null"
    if bound is None:
        if gap is not None:
            yield f"report: gap: expected none without a lower bound, got {show(gap)}"
        if status == "optimal":
            yield "report: status: optimal, but there is no lower bound"
        return
    if bound > cost * (1 + RELATIVE):
        yield f"report: lower_bound: {bound:.9g} is more than the cost {cost:.9g}"
    elif status == "optimal" and cost - bound > RELATIVE * cost:
        yield f"report: status: optimal, but the cost {cost:.9g} is above the bound {bound:.9g}"
    expected = max(0.0, (cost - bound) / cost) if cost > 0 else 0.0
    yield from _equal(facts, "gap", expected, slack=RELATIVE)
