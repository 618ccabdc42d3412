"""Why a schedule cannot be cheaper, in words and with numbers, and where it loses its time.

Every number is the bounds' own: the words name what :mod:`pipeloom.solver.bounds.linear.linear`
returns by stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.overlap import pairs_save
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.ops import KIND_MASK, FloatArray, IntArray, OpKind
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import amount, counted, duration
from pipeloom.solver.bounds import lower_bounds, plain_bounds
from pipeloom.solver.bounds.feasibility import check_feasible
from pipeloom.solver.bounds.general import busy
from pipeloom.solver.bounds.linear import heads, holding_spans, tail_idle, through_spans
from pipeloom.solver.bounds.low_memory.activation_slots import slot_spans
from pipeloom.solver.bounds.low_memory.crossings import slowest_stage
from pipeloom.solver.bounds.weight_arrival import arrivals
from pipeloom.solver.core.bound import Bound
from pipeloom.solver.core.linear_instance import Chain
from pipeloom.solver.core.relaxations import has_levers, relaxed, relaxed_at_backwards

BELOW = 1 - 1e-9
"""A cost just below a bound, relative: what the bound rules out."""
SEARCHED: Mapping[str, str] = {
    "relaxation": "a small MILP over the moments that every stage has (its first B, last F, last "
    "B)",
    "lanes": "a search over where microbatches on their way up meet those on their way down",
    "interleaving": "a search over which F's run before which B's, W's included",
    "cp-sat": "CP-SAT, which left no cheaper order",
    "milp": "the MILP, which left no cheaper order",
}
"""Bounds that a search has proven: there is no argument in closed form."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why no schedule costs less than ``value``. ``rank`` binds; None where it is no single one."""

    name: str
    value: float
    rank: int | None
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """Where a rank's time goes; the five figures sum up to the schedule's cost.

    ``head``: idle before its first B. ``tail``: idle after its last F started (or its first B,
    where that is later). ``between``: idle between the two. ``spare``: what it spans less than the
    cost; of a makespan, the time before its first op and after its last.
    """

    rank: int
    work: float
    head: float
    between: float
    tail: float
    spare: float


PAIRED = "with pairs: what a pair saves counts as time that its BW does not take"


def losses(schedule: Schedule) -> list[Loss]:
    """One a rank, by the schedule's own times."""
    timing = timed(schedule).timing
    assert timing is not None
    cost = timing.cost(schedule.problem.objective)
    rows = zip(schedule.order, timing.start, timing.end, strict=True)
    return [_loss(rank, cost, *row) for rank, row in enumerate(rows)]


def _loss(rank: int, cost: float, ops: IntArray, start: FloatArray, end: FloatArray) -> Loss:
    if len(ops) == 0:
        return Loss(rank, 0.0, 0.0, 0.0, 0.0, cost)
    kinds = ops & KIND_MASK
    # before each op; those of a pair begin at once
    idle = np.append(0.0, np.maximum(0.0, start[1:] - end[:-1]))
    first_b = int(np.argmax(kinds != OpKind.F))
    last_f = len(kinds) - 1 - int(np.argmax(kinds[::-1] == OpKind.F))
    late = max(first_b, last_f)
    head, between, tail = (float(part.sum()) for part in np.split(idle, (first_b + 1, late + 1)))
    span = float(end[-1] - start[0])
    return Loss(rank, span - float(idle.sum()), head, between, tail, cost - span)


def why(schedule: Schedule) -> Reason:
    """The argument behind the schedule's certified bound.

    Where a search has proven the bound, also how far the best argument in closed form goes.
    Raises InfeasibleError where no schedule keeps the problem's limit.
    """
    problem, report = schedule.problem, schedule.report
    check_feasible(problem)
    reason = _simplest(problem)
    if report is None or report.lower_bound is None:
        return reason
    name, value = str(report.bound_name), report.lower_bound
    if name not in SEARCHED or value <= reason.value:
        return replace(reason, value=min(reason.value, value))
    words = (
        f"{duration(value)} is proven by {SEARCHED[name]}; in closed form, "
        f"{duration(reason.value)} is"
    )
    return Reason(name, value, reason.rank, (words, *reason.words))


def _simplest(problem: Problem) -> Reason:
    """The first argument, from simple to intricate, that gives the best bound in closed form."""
    found = list(lower_bounds(problem))
    best = max(bound.value for bound in found)
    first = next(bound for bound in found if bound.value >= best * BELOW)
    return _explained(_bare(problem, first), first.name, best, first.words)


def _bare(problem: Problem, bound: Bound) -> Problem:
    """The problem without levers whose bound it is; the problem itself where pairs save, or the
    bound is about levers."""
    if pairs_save(problem):
        return problem
    if not has_levers(problem):
        return relaxed(problem)
    for bare in (relaxed(problem), relaxed_at_backwards(problem)):
        same = (each for each in plain_bounds(bare) if each.name == bound.name)
        if any(each.value >= bound.value * BELOW for each in same):
            return bare
    return problem


def _explained(problem: Problem, name: str, value: float, words: str) -> Reason:
    if pairs_save(problem):  # the arguments below would give the times of ops that run alone
        return Reason(name, value, None, (words, PAIRED))
    chain = Chain.of(problem)
    if name in _GENERAL:
        rank, lines = _GENERAL[name](problem)
    elif chain is not None and name in _LINEAR:
        stage, lines = _LINEAR[name](chain, chain.lags(problem.objective), value)
        rank = int(chain.ranks[stage])
    else:
        rank, lines = None, [words]
    if problem.objective is Objective.MAKESPAN and chain is not None and rank is not None:
        lag = float(chain.offset[chain.ranks.tolist().index(rank)])
        if lag > 0 and name in _LINEAR:
            lines = [*lines, f"it starts at least {duration(lag)} after the first rank"]
    return Reason(name, value, rank, tuple(lines))


def _work(problem: Problem) -> tuple[int | None, list[str]]:
    work = busy(problem)
    rank = int(work.argmax())
    lines = [f"rank {rank} computes for {duration(work[rank])} and runs one op at a time"]
    mean = float(work.mean())
    if mean < work[rank] * BELOW and problem.placement.passing is Passing.ACTIVATIONS:
        lines.append(
            "no order helps, only another cut, or more stages a rank (interleaved:2, say): shared "
            "out "
            f"evenly, each rank would compute for {duration(mean)}"
        )
    return rank, lines


def _critical_path(problem: Problem) -> tuple[int | None, list[str]]:
    costs = Costs.of(problem)
    links = float((costs.into_f + costs.into_b).sum(axis=0).max())
    return None, [
        f"one microbatch alone passes {counted(problem.stages, 'stage')} and comes back, "
        f"{duration(links)} of it on links"
    ]


def _arrivals(problem: Problem) -> tuple[int | None, list[str]]:
    work = float(busy(problem).max())
    waits = arrivals(problem) - work
    return None, [
        f"the busiest ranks compute for {duration(work)}, and at least one of them waits "
        f"{duration(waits)} for weights: "
        "whoever owns them, on their first way to all ranks over these links"
    ]


def _head_tail(chain: Chain, lags: FloatArray, value: float) -> tuple[int, list[str]]:
    tail, work = tail_idle(chain), chain.work
    found = heads(chain, value * BELOW, lags)
    i = int((work + tail + lags).argmax()) if found.stuck is None else found.stuck
    most, m = int(chain.capacity[i]), chain.microbatches
    head, last = max(0.0, float(found.earliest[i] - most * chain.f[i])), float(tail[i])
    total = head + last if most < m else max(head, last)
    forced = _forced(chain, lags, value, i)
    would = "any cheaper schedule: " if forced else ""
    idles = f"idles at least {duration(total)}" if total > 0 else "need not idle"
    lines = [f"{would}rank {chain.ranks[i]} computes for {duration(work[i])} and {idles}"]
    if head > 0:
        lines += [_head(chain, i, head, float(found.earliest[i])), *forced]
    if last > 0:
        lines.append(_tail(chain, i, last))
    if head > 0 and last > 0 and most >= m:
        lines.append("the two may be the same idle time, so that the longer one counts")
    return i, lines


def _head(chain: Chain, i: int, idle: float, first_b: float) -> str:
    most, m = int(chain.capacity[i]), chain.microbatches
    fill = "fills" if most == 1 else "fill"
    full = (
        f"{counted(most, 'microbatch')} {fill} its memory" if most < m else "its F's have all run"
    )
    return (
        f"{duration(idle)} before its first B: that B cannot come before {duration(first_b)}, "
        f"and {full} after {duration(float(most * chain.f[i]))}"
    )


def _tail(chain: Chain, i: int, idle: float) -> str:
    trip = float(chain.round_trip[i])
    return (
        f"{duration(idle)} after its last F: that microbatch's B starts at least {duration(trip)} "
        "after the F, "
        f"and what memory holds then gives the rank {duration(trip - idle)} to compute meanwhile"
    )


def _forced(chain: Chain, lags: FloatArray, value: float, stuck: int) -> list[str]:
    """The later ranks that a lower cost leaves so little idle time that they need one F more."""
    below, at = (heads(chain, value * share, lags).counts for share in (BELOW, 2 - BELOW))
    later = [k for k in range(stuck + 1, chain.stages) if below[k] > at[k]]
    return [
        f"which rank {chain.ranks[k]} holds up: at that cost it would have to run {below[k]} F's "
        f"before its first B, not {at[k]}, so as not to idle longer itself"
        for k in later[-1:]
    ]


def _through(chain: Chain, lags: FloatArray, _: float) -> tuple[int, list[str]]:
    spans = through_spans(chain, lags)
    k, i = (int(at) for at in np.unravel_index(int(spans.argmax()), spans.shape))
    until = float(spans[k, k] - lags[k] - chain.w[k])
    more = float(spans[k, i] - until - lags[i])
    far, rank = int(chain.ranks[k]), int(chain.ranks[i])
    lines = [
        f"rank {far} takes at least {duration(until)} from its first F to the end of its last B: "
        "all "
        f"{counted(chain.microbatches, 'microbatch')} pass it one after the other"
    ]
    if k != i:
        lines.append(
            f"rank {rank} begins before that and ends after it, {duration(more)} in all: the way "
            "to "
            f"rank {far}, the way back, and its last W"
        )
    return i, lines


def _throughput(chain: Chain, lags: FloatArray, _: float) -> tuple[int, list[str]]:
    spans = holding_spans(chain, lags)
    i = int(spans.argmax())
    rank, held = int(chain.ranks[i]), float(chain.round_trip[i] + chain.b[i])
    return i, [
        f"a microbatch holds {amount(chain.m_b[i])} of rank {rank}'s memory for at least "
        f"{duration(held)}, "
        f"there and back: {chain.microbatches} of them within a limit of {amount(chain.limit[i])} "
        "need "
        f"{duration(spans[i] - lags[i])}, though the rank computes for {duration(chain.work[i])} "
        "only"
    ]


def _slots(chain: Chain, lags: FloatArray, _: float) -> tuple[int, list[str]]:
    spans = slot_spans(chain, lags)
    i = int(spans.argmax())
    rank, there_and_back = int(chain.ranks[i]), float(chain.round_trip[i] + chain.b[i])
    lines = [
        f"rank {rank} spans at least {duration(spans[i] - lags[i])}, of which it computes for "
        f"{duration(chain.work[i])}: {chain.capacity[i]} of {chain.microbatches} microbatches fit "
        "in its "
        f"memory, and each is held for at least {duration(there_and_back)}, there and back",
        "a further one starts only where an earlier one has left its place, here and on every "
        "later "
        "rank; this is the longest chain of such waits",
    ]
    return i, lines


def _crossings(chain: Chain, lags: FloatArray, value: float) -> tuple[int, list[str]]:
    i = slowest_stage(chain)
    rank = int(chain.ranks[i])
    return i, [
        f"rank {rank} spans at least {duration(value - lags[i])}, of which it computes for "
        f"{duration(chain.work[i])}: {chain.capacity[i]} of {chain.microbatches} microbatches fit "
        "in its "
        f"memory, and are gone for at least {duration(float(chain.round_trip[i] + chain.b[i]))} "
        "each, "
        "there and back",
        "on the way those that go down meet those that come up, and on each stage one waits for "
        "the other",
    ]


_GENERAL: Mapping[str, Callable[[Problem], tuple[int | None, list[str]]]] = {
    "work": _work,
    "critical-path": _critical_path,
    "arrivals": _arrivals,
}
_LINEAR: Mapping[str, Callable[[Chain, FloatArray, float], tuple[int, list[str]]]] = {
    "head-tail": _head_tail,
    "through": _through,
    "throughput": _throughput,
    "slots": _slots,
    "crossings": _crossings,
}
