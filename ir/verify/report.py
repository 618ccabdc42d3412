"""Checks of a schedule's report and of the memory limits; each yields one line per violation."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..errors import show
from .schedule_facts import Facts, Run
from .waits import RELATIVE


def verify_report(facts: Facts) -> Iterator[str]:
    """Yield a line for each value in the report that does not follow from the times of the ops.

    The lower bound and the status are checked as well.
    """
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
        yield f"report: peak_memory: expected one number per rank, got {show(values)}"
        return
    for rank, (value, peak) in enumerate(zip(values, peaks, strict=True)):
        if not _is_near(value, peak, MEMORY * max(peaks)):
            yield f"report: peak_memory: rank {rank} holds at most {peak:.9g}, got {show(value)}"


def _certificate(facts: Facts, cost: float) -> Iterator[str]:
    """Yield violations of the lower bound, the gap and the status.

    The bound must not exceed ``cost``, the gap must follow from both, and the status "optimal"
    needs a gap within the tolerance.
    """
    bound, gap, status = facts.report.lower_bound, facts.report.gap, facts.report.status
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


MEMORY = 1e-9  # relative tolerance of sums of M_B's and M_W's


def verify_memory(facts: Facts) -> Iterator[str]:
    """Yield a line for each rank whose activations exceed its memory limit.

    The line names the first op whose start exceeds the limit.
    """
    for rank, row in enumerate(facts.order):
        limit = facts.limit[rank]
        for run, held in held_at(facts, row):
            if run.kind in ("F", "R", "L") and held > limit + MEMORY * max(limit, held):
                yield (
                    f"rank {rank} holds {held:.9g} from {run.start:.9g}, when {run} (op {run.at}) "
                    f"starts, more than its memory limit {limit:.9g}"
                )
                break  # only the first violation of a rank is reported


def held_at(facts: Facts, row: list[Run]) -> Iterator[tuple[Run, float]]:
    """Yield each op of ``row``, one rank's ops in order, with the memory held after it.

    This is the sum of the changes of memory by all ops up to this one. An F, R or L changes the
    memory at its start, other ops at their end.
    """
    held = 0.0
    again = {(run.stage, run.microbatch) for run in row if run.kind == "R"}
    for run in row:
        stage = facts.at(run.stage, run.microbatch)
        recomputed = (run.stage, run.microbatch) in again
        m_r = stage.m_r if recomputed and stage.m_r is not None else stage.m_b
        m_o = stage.m_o or 0.0
        held += {
            "F": m_r,
            "R": stage.m_b - m_r,
            "O": m_o - stage.m_b,
            "L": stage.m_b - m_o,
            "B": stage.m_w - stage.m_b,
            "W": -stage.m_w,
            "BW": -stage.m_b,
        }[run.kind]
        yield run, held
