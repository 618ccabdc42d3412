"""Checks of the times at which gradients are averaged over replicas of the pipeline.

They use only the schedule's document.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ..errors import show
from ..formats.schedule_document import Averaged
from ..model.profile import DataParallel
from .schedule_facts import Facts

_RELATIVE = 1e-6


_Rows = Sequence[Sequence[Averaged]]


def verify_averages(facts: Facts) -> list[str]:
    """All violations of the rules for averages over replicas, one line each.

    Without replicas there must be no averages. The list is empty if the document has no key
    ``averages``.
    """
    rows = facts.plan.averages
    if rows is None:
        return []
    replicas = facts.plan.profile.data_parallel
    if replicas is None:
        none = "averages: expected none, as the profile has no data_parallel"
        return [none] if any(rows) else []
    return [*_places(facts, rows), *_times(facts, rows, replicas), *_iteration_time(facts, rows)]


def _places(facts: Facts, rows: _Rows) -> Iterator[str]:
    """Yield a line for each stage that a rank averages twice, wrongly, or wrongly not at all.

    ``rows``: the averages of each rank. If activations are sent, a rank must average all stages
    that it runs, and no others. Otherwise, at least one rank must average each stage.
    """
    for rank, row in enumerate(rows):
        counts = Counter(one.stage for one in row)
        for stage, count in counts.items():
            if count > 1:
                yield f"rank {rank} averages stage {stage} {count} times, expected once"
        if facts.plan.passing != "activations":
            continue
        runs = {run.stage for run in facts.order[rank]}
        for stage in sorted(runs ^ set(counts)):
            yield (
                f"rank {rank} {'never averages' if stage in runs else 'averages'} stage {stage}"
                + ("" if stage in runs else ", which it does not run")
            )
    homes = {one.stage for row in rows for one in row}
    for stage in range(facts.plan.stages):
        if facts.plan.passing != "activations" and stage not in homes:
            yield f"no rank averages stage {stage}"


def _times(facts: Facts, rows: _Rows, replicas: DataParallel) -> Iterator[str]:
    """Yield a line for each average in ``rows``, those of each rank, with a wrong start or end.

    The averages of a rank must run one at a time, wait until their gradient is complete, and take
    as long as a ring all-reduce. If the schedule passes activations, an average must also start as
    soon as possible.
    """
    slack = _RELATIVE / 1000 * max((run.end for run in facts.runs), default=0.0)
    for rank, row in enumerate(rows):
        free = 0.0
        for one in row:
            whole = max(
                (
                    run.end
                    for run in facts.order[rank]
                    if run.stage == one.stage and run.kind in ("W", "BW")
                ),
                default=0.0,
            )
            ready = max(free, whole)
            exact = facts.plan.passing == "activations"
            if one.start < ready - slack or (exact and one.start > ready + slack):
                yield (
                    f"rank {rank} averages stage {one.stage} from {one.start:.9g} on, expected "
                    f"{ready:.9g}, when its gradient is whole and the link is free"
                )
            end = one.start + _duration(facts, one.stage, replicas)
            if not math.isclose(one.end, end, rel_tol=_RELATIVE, abs_tol=slack):
                yield (
                    f"rank {rank} averages stage {one.stage} until {one.end:.9g}, expected "
                    f"{end:.9g}"
                )
            free = one.end


def _duration(facts: Facts, stage: int, replicas: DataParallel) -> float:
    """``exposed`` times the duration, in ms, of a ring all-reduce of the stage's gradient.

    With D replicas, the all-reduce has 2 (D - 1) messages, each with 1 / D of the gradient.
    """
    of, size = facts.stage(stage), replicas.size
    gradient = (of.weight_bytes or 0.0) if of.grad_bytes is None else of.grad_bytes
    part = gradient / size / (replicas.link.gigabytes_per_second * 1e6)
    return replicas.exposed * (2 * size - 2) * (part + replicas.link.latency)


def _iteration_time(facts: Facts, rows: _Rows) -> Iterator[str]:
    """Yield a line if the report's iteration time does not follow from the ops and ``rows``."""
    report, objective = facts.report, facts.report.objective
    given = report.iteration_time
    ends = [
        max([run.end for run in order] + [one.end for one in row])
        for order, row in zip(facts.order, rows, strict=True)
        if order
    ]
    starts = [min(run.start for run in order) for order in facts.order if order]
    if not starts:
        return
    spans = [end - start for start, end in zip(starts, ends, strict=True)]
    expected = max(spans) if objective == "period" else max(ends) - min(starts)
    if given is None or not math.isclose(given, expected, rel_tol=_RELATIVE):
        yield (
            f"report: iteration_time: expected {expected:.9g}, by the averages, got {show(given)}"
        )
