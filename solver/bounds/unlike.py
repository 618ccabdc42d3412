"""Bounds for microbatches with different times or sizes ("unlike").

Work is summed over all microbatches. Where any microbatch may be the first or the last to do
something, the minimum time of all counts. All bounds hold for schedules that pass activations, and
for every order of the microbatches. ``R_ij`` is the round trip of microbatch j: the minimum time
from the start of its F on stage i to the start of its B there, f_ij + sum over k > i of (f_kj +
b_kj) and the delays between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.units import duration

from ..core.bound import Bound, starts_later
from ..core.tolerances import ROUNDING


def unlike_bounds(problem: Problem) -> Iterator[Bound]:
    """Yield the bounds of a problem that passes activations, without recomputation and offload."""
    figures = Figures.of(problem)
    yield through_some(figures)
    if len(set(figures.owner.tolist())) == len(figures.owner):
        yield heads_and_tails(figures)


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """Times and sizes of all microbatches, shape (S, M) unless noted otherwise.

    ``f``, ``b``, ``w``, ``m_b``, ``m_w``: T_F, T_B, T_W, M_B, M_W. ``into_f``, ``into_b``: the
    delays before F and B. ``down``: the minimum time from the start of a microbatch's F on stage 0
    to the start of its F on the stage. ``up``: the minimum time from the end of its B on the stage
    to the end of its B on stage 0. ``trip``: the minimum time from the start of its F to the start
    of its B on the stage. ``owner``: the rank of each stage, (S,). ``limit``: memory limits, (P,),
    including the tolerance. ``makespan``: whether the makespan is the objective; otherwise it is
    the period.
    """

    f: FloatArray
    b: FloatArray
    w: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    down: FloatArray
    up: FloatArray
    trip: FloatArray
    into_f: FloatArray
    into_b: FloatArray
    owner: IntArray
    limit: FloatArray
    makespan: bool

    @classmethod
    def of(cls, problem: Problem) -> Self:
        costs = Costs.of(problem)
        f, b, w = costs.durations[:3]
        none = np.zeros((1, problem.microbatches))
        down = np.cumsum(np.concatenate([none, f[:-1] + costs.into_f[1:]]), axis=0)
        up = np.cumsum(np.concatenate([none, b[:-1] + costs.into_b[:-1]]), axis=0)
        ways = f[1:] + b[1:] + costs.into_f[1:] + costs.into_b[:-1]
        later = np.concatenate([np.cumsum(ways[::-1], axis=0)[::-1], none])
        limit = costs.limit * (1 + ROUNDING)
        makespan = problem.objective is Objective.MAKESPAN
        m_b, m_w, owner = costs.m_b, costs.m_w, costs.owner[:, 0]
        into = costs.into_f, costs.into_b
        return cls(f, b, w, m_b, m_w, down, up, f + later, *into, owner, limit, makespan)


def through_some(of: Figures) -> Bound:
    """The bound "through": some microbatches pass a stage one by one, all others delay them.

    *Claim.* For any set of microbatches and stages i <= k, the span of the rank of stage i is at
    least the sum of: the minimum time in which a microbatch of the set gets from stage i to stage
    k; the F's and B's of the set on stage k; the minimum time in which one gets back from stage k
    to stage i, with its W there; and for every other microbatch the minimum of the times in cases 1
    to 4 below.

    *Proof.* Let a be the first microbatch of the set whose F runs on stage k, and z the last one
    whose B runs there. Follow a from its F on stage i to stage k; then stage k, which runs all F's
    and B's of the set, one at a time, between a's F and z's B; then z from there to its B and W on
    stage i. For every other microbatch u at least one of four cases holds, and adds the time in
    brackets:

    1. The F of u on stage i runs before a's [time of that F of u].
    2. The B of u on stage i, hence also its W, runs after z's [time of that B and W of u].
    3. On stage k, F and B of u run between a's F and z's B [time of that F and B of u].
    4. u overtakes a between stages i and k, or z on the way back [time of one op of u, as follows].
       Let x be the first op in which u is ahead and y the op before it. The y of the one overtaken
       ends before u's y starts, and u's x follows u's y. So the one overtaken waits during all of
       u's x, provided that its message from y to x takes no longer than u's y and message together.
       The excess, if any, is subtracted.

    If several microbatches overtake in the same op, their ops run one after the other, so all times
    add up.

    The sets tried contain the microbatches with the longest times to stage k and back.
    """
    value, i, k, chosen = longest_pass(of)
    words = "microbatches pass a later stage one after the other, with all others in their way"

    def numbers() -> list[str]:
        if len(chosen) == 1:
            who = "the longest microbatch passes"
        else:
            who = f"the {len(chosen)} longest of {of.f.shape[1]} microbatches pass"
        line = f"{who} stage {k}, one at a time, between stage {i}'s ops before and after that"
        return [f"{line}, and each of the others is in the way somewhere"]

    return Bound(value, "through", words, int(of.owner[i]), numbers)


class Pass(NamedTuple):
    """A bound on the span of a rank: ``microbatches`` pass stage ``by`` one after the other.

    ``stage``: the stage from which they come and to which they go back; ``span``: the lower bound
    on the span of that stage's rank. See :func:`through_some`.
    """

    span: float
    stage: int
    by: int
    microbatches: tuple[int, ...]


def longest_pass(of: Figures) -> Pass:
    """The highest bound on a rank's span by :func:`through_some`, over all pairs of stages."""
    waited, best = _waited(of), Pass(0.0, 0, 0, (0,))
    for first in range(len(of.f)):
        least = np.minimum(of.f[first], of.b[first] + of.w[first])
        for stage in range(first, len(of.f)):
            if stage > first:
                least = np.minimum(least, np.minimum(waited[0][stage], waited[1][stage - 1]))
            down, up = of.down[stage] - of.down[first], of.up[stage] - of.up[first] + of.w[first]
            span, chosen = _longest(down, up, of.f[stage] + of.b[stage], least)
            if span > best.span:
                best = Pass(span, first, stage, chosen)
    return best


def _longest(
    down: FloatArray, up: FloatArray, own: FloatArray, least: FloatArray
) -> tuple[float, tuple[int, ...]]:
    """The set of microbatches with the largest bound for one pair of stages.

    The bound is the minimum ``down`` and the minimum ``up`` in the set, the sum of ``own`` over the
    set, and the sum of ``least`` over all others; all arguments have shape (M,). The sets tried are
    the microbatches with the largest ``down + up``, for each number of them. Returns the bound and
    the set.
    """
    order = np.argsort(-(down + up), kind="stable")
    ways = np.minimum.accumulate(down[order]) + np.minimum.accumulate(up[order])
    spans = ways + np.maximum(0.0, own - least)[order].cumsum() + least.sum()
    return float(spans.max()), tuple(order[: int(spans.argmax()) + 1].tolist())


def _waited(of: Figures) -> tuple[FloatArray, FloatArray]:
    """The minimum time that an overtaken microbatch waits in each F and in each B, (S, M) each.

    Entry [s, u] is for the microbatch u that overtakes in its op on stage s.
    """
    before_f = np.concatenate([np.zeros((1, of.f.shape[1])), of.f[:-1]])
    before_b = np.concatenate([of.b[1:], of.f[-1:]])
    rows = (of.f, before_f, of.into_f), (of.b, before_b, of.into_b)
    f, b = (
        np.maximum(0.0, own - np.maximum(0.0, delay.max(axis=1, keepdims=True) - delay - before))
        for own, before, delay in rows
    )
    return f, b


def heads_and_tails(of: Figures) -> Bound:
    """The bound "head-tail": idle time before a rank's first B and after its last F.

    Each stage must have a rank of its own. R_ij is the minimum time from the start of microbatch
    j's F on stage i to the start of its B there.

    *Head.* The first B of stage i is of a microbatch j whose F ran there before, so it starts at
    least R_ij after the stage began. Until then the rank runs only F's: that of j, and others whose
    M_B fit into memory beside it. The fractional knapsack bounds their time.

    *Tail.* After the start of the last F, of microbatch j, its B starts no earlier than R_ij later.
    Until then the rank runs that F, and B's and W's of microbatches that it holds, which fit into
    memory beside j (:func:`_choice`).

    If not all M_B fit at once, the last F comes after the first B, so both idle times add up.
    """
    work = (of.f + of.b + of.w).sum(axis=1)
    spans, idles = np.zeros(len(work)), np.zeros((2, len(work)))
    for i in range(len(work)):
        limit = of.limit[of.owner[i]]
        left = limit - of.m_b[i]
        # the knapsack may choose j itself once more; that can only lower the bound
        beside = _choice([(of.m_b[i], of.f[i])], left)
        head = max(0.0, float((of.trip[i] - of.f[i] - beside).min()))
        kinds = [(of.m_w[i], of.w[i]), (of.m_b[i] - of.m_w[i], of.b[i])]
        tail = max(0.0, float((of.trip[i] - of.f[i] - _choice(kinds, left)).min()))
        idles[:, i] = head, tail
        apart = of.m_b[i].sum() > limit
        spans[i] = work[i] + (head + tail if apart else max(head, tail))
    lags = of.down.min(axis=1) if of.makespan else np.zeros(len(work))
    i = int((spans + lags).argmax())
    head, tail = idles[:, i].tolist()

    def numbers() -> list[str]:
        line = f"rank {of.owner[i]} computes for {duration(float(work[i]))}, and idles at least "
        line += f"{duration(head)} before its first B and {duration(tail)} after its last F"
        return [line, *starts_later(float(lags[i]))]

    words = "idle time before a rank's first B and after its last F"
    return Bound(float((spans + lags)[i]), "head-tail", words, int(of.owner[i]), numbers)


def _choice(kinds: list[tuple[FloatArray, FloatArray]], rooms: FloatArray) -> FloatArray:
    """Upper bound on the time of ops that fit into memory of sizes ``rooms`` (fractional knapsack).

    ``rooms``: n sizes; returns a time for each, shape (n,). ``kinds``: pairs (sizes, times) of an
    op of each microbatch, shape (M,) each: one pair for F's of size M_B; or one for W's of size M_W
    and one for B's of size M_B - M_W. A B needs memory for its W, too; the knapsack may take only
    the B, which can only raise the result.
    """
    sizes, times = (np.concatenate(column) for column in zip(*kinds, strict=True))
    free = sizes <= 0
    total, sizes, times = float(times[free].sum()), sizes[~free], times[~free]
    by_worth = np.argsort(-times / sizes, kind="stable")
    ends = np.append(0.0, np.cumsum(sizes[by_worth]))
    sums = np.append(0.0, np.cumsum(times[by_worth]))
    return np.asarray(total + np.interp(np.maximum(0.0, rooms), ends, sums))
