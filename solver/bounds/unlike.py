"""Bounds for microbatches with different times or sizes ("unlike").

Work is summed over all microbatches. Where any microbatch may be the first or the last to do
something, the bounds use the minimum of the time over all microbatches. They hold for all schedules
that pass activations, and for every order of the microbatches. ``R_ij`` is the round trip of
microbatch j on stage i: the minimum time from the start of its F on stage i to the start of its B
there. That is f_ij plus, over all k > i, the sum of f_kj + b_kj and of the delays before these ops,
plus the delay before the B on stage i.
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
    """Yield the bounds of this module that apply to the problem.

    The problem must pass activations, and allow neither recomputation nor offload.
    """
    figures = Figures.of(problem)
    yield through_some(figures)
    if len(set(figures.owner.tolist())) == len(figures.owner):
        yield heads_and_tails(figures)


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """Times and sizes of each microbatch on each stage, shape (S, M) unless noted otherwise.

    ``f``, ``b``, ``w``, ``m_b``, ``m_w``: T_F, T_B, T_W, M_B, M_W. ``into_f``, ``into_b``: the
    delays before F and B. ``down``: the minimum time from the start of the microbatch's F on stage
    0 to the start of its F on the stage. ``up``: the minimum time from the end of its B on the
    stage to the end of its B on stage 0. ``trip``: R_ij, the minimum time from the start of its F
    on the stage to the start of its B there. ``owner``: the rank of each stage, shape (S,).
    ``limit``: the memory limit of each rank, including the tolerance, shape (P,). ``makespan``:
    whether the makespan is the objective; otherwise it is the period.
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
    k; the times of the set's F's and B's on stage k; the minimum time in which a microbatch of the
    set gets back from stage k to stage i and runs its W there; and for every other microbatch the
    minimum of the times in cases 1 to 4 below.

    *Proof.* Let a be the first microbatch of the set whose F runs on stage k, and z the last one
    whose B runs there. Follow a from its F on stage i to stage k; then stage k, which runs all F's
    and B's of the set, one at a time, between a's F and z's B; then z from there to its B and W on
    stage i. For every other microbatch u at least one of four cases holds, and adds the time in
    brackets:

    1. The F of u on stage i runs before a's [time of that F of u].
    2. The B of u on stage i, hence also its W, runs after z's [time of that B and W of u].
    3. On stage k, F and B of u run between a's F and z's B [time of that F and B of u].
    4. u overtakes a between stages i and k, or z on the way back [time of one op of u, as follows].
       Let v be the one overtaken (a or z), x the first op that u runs before v does, and y the op
       before x on the way. The y of v ends before u's y starts, and u's x follows u's y. So v waits
       during all of u's x, provided that v's message from y to x takes no longer than u's y and
       message together. The excess, if any, is subtracted.

    If several microbatches overtake in the same op, their ops run one after the other, so all times
    add up.

    For each n, the n microbatches with the longest times to stage k and back are tried as the set.
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
    """A lower bound ``span`` on the span of a rank, in the notation of :func:`through_some`.

    ``stage``: the stage i, whose rank the bound is about. ``by``: the stage k, which the set's
    microbatches pass through one after the other. ``microbatches``: the set.
    """

    span: float
    stage: int
    by: int
    microbatches: tuple[int, ...]


def longest_pass(of: Figures) -> Pass:
    """The highest of all bounds on a rank's span that :func:`through_some` gives for i <= k."""
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
    """The highest bound that :func:`through_some` gives for one pair of stages i <= k, and its set.

    All arguments are times of each microbatch, shape (M,): ``down``, from stage i to stage k;
    ``up``, back from k to i, with the W on i; ``own``, of its F and B on k; ``least``, the minimum
    over the four cases, where at most ``own`` counts. The bound that a set gives is the sum of four
    terms: the minimum of ``down`` in the set, the minimum of ``up`` in the set, the sum of ``own``
    over the set, and the sum of ``least`` over all other microbatches. For each n, the set of the n
    microbatches with the largest ``down + up`` is tried.
    """
    order = np.argsort(-(down + up), kind="stable")
    ways = np.minimum.accumulate(down[order]) + np.minimum.accumulate(up[order])
    spans = ways + np.maximum(0.0, own - least)[order].cumsum() + least.sum()
    return float(spans.max()), tuple(order[: int(spans.argmax()) + 1].tolist())


def _waited(of: Figures) -> tuple[FloatArray, FloatArray]:
    """The minimum time that a microbatch waits when microbatch u overtakes it.

    Returns two arrays of shape (S, M), by stage s and by u: the time if u overtakes in its F on s,
    and the time if u overtakes in its B on s.
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
    j's F on stage i to the start of its B there. A rank's idle time at one end is at least the
    smallest over all j of R_ij minus the upper bound below on the time that it computes meanwhile.

    *Head.* The first B of stage i is of a microbatch j whose F ran there before, so it starts at
    least R_ij after the stage began. Until then the rank runs only F's: that of j, and others whose
    M_B fit into memory with it. The fractional knapsack bounds their time.

    *Tail.* Let j be the microbatch of the last F. Its B starts at least R_ij after that F starts.
    Until then the rank runs that F, and B's and W's of microbatches that it holds, which fit into
    memory with j (:func:`_choice`).

    If not all M_B fit at the same time, the last F comes after the first B, so both idle times add
    up; otherwise the larger one counts.
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
    """For each of n memory sizes, an upper bound on the total time of ops that fit, shape (n,).

    It is the optimum of the fractional knapsack. ``rooms``: the n memory sizes. ``kinds``: for each
    kind of op a pair (sizes, times) of arrays of shape (M,), with one op of each microbatch. The
    kinds are F's of size M_B; or W's of size M_W, and B's of size M_B - M_W. A B also needs memory
    for its W; as the knapsack may take the B without its W, the result can only be higher.
    """
    sizes, times = (np.concatenate(column) for column in zip(*kinds, strict=True))
    free = sizes <= 0
    total, sizes, times = float(times[free].sum()), sizes[~free], times[~free]
    by_worth = np.argsort(-times / sizes, kind="stable")
    ends = np.append(0.0, np.cumsum(sizes[by_worth]))
    sums = np.append(0.0, np.cumsum(times[by_worth]))
    return np.asarray(total + np.interp(np.maximum(0.0, rooms), ends, sums))
