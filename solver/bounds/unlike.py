"""Bounds for microbatches that are unlike: work is summed over them, and of what any of them may be
the first or the last to do the least counts.

All hold for schedules that pass activations, and for every order of microbatches. ``R_ij`` is the
round trip of microbatch j: the least time from its F's start on stage i to its B's start there,
f_ij + sum over k > i of f_kj + b_kj and the delays between.
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
    """The bounds of a problem that passes activations and has no recomputation or offload."""
    figures = Figures.of(problem)
    yield through_some(figures)
    if problem.limited:
        yield memory_time(figures)
    if len(set(figures.owner.tolist())) == len(figures.owner):
        yield heads_and_tails(figures)


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """The figures of all microbatches, (S, M) where not said otherwise.

    ``into_f``, ``into_b``: the delays before F and B. ``down``: the least time from the start of a
    microbatch's F on stage 0 to that on the stage; ``up``: from the end of its B on the stage to
    that on stage 0.
    ``trip``: R. ``owner``: (S,). ``limit``: (P,), rounding included. ``makespan``: the objective.
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
    """Some microbatches pass a later stage one after the other, with all others in their way.

    Proof, for any set of microbatches, stage i and a stage k from i on: let a be the first of the
    set whose F runs on stage k, z the last whose B runs there. Follow a from its F on stage i to
    stage k, then stage k, on which all F's and B's of the set run one at a time from a's F to z's
    B, then z from there to its B on stage i, and its W. Of any other microbatch, either (1) the F
    on stage i runs before a's, or (2) the B, and so the W, runs there after z's, or (3) on stage k,
    F and B run between a's F and z's B, or (4) it comes from behind a and is before it on stage k,
    or from behind z, on the way back, before it on stage i. Then there is a first op, x, in which
    it is before a (or z), having been behind it in the op before, y. The other's y has ended then,
    its own y runs after that and then its x: all of x is time for which the other waits, where the
    other's message takes no longer than its own does together with its y; what is longer is taken
    off. Ops of several for which one waits run one after the other. So the span of the rank of
    stage i is at least the ways of a and z without a wait, each at least the least of the set, the
    F's and B's of the set on stage k, and of every other microbatch the least of the four.

    The sets tried are those of the microbatches with the longest ways to stage k and back.
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
    """``microbatches`` pass stage ``by``, and one of them each comes from and goes back to
    ``stage``; ``span``: what it takes at least."""

    span: float
    stage: int
    by: int
    microbatches: tuple[int, ...]


def longest_pass(of: Figures) -> Pass:
    """The one of most time that :func:`through_some` proves."""
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
    """The largest sum, over sets of the longest microbatches, of the least ``down`` and the least
    ``up`` in the set, its ``own`` and the ``least`` of all others; and the set."""
    order = np.argsort(-(down + up), kind="stable")
    ways = np.minimum.accumulate(down[order]) + np.minimum.accumulate(up[order])
    spans = ways + np.maximum(0.0, own - least)[order].cumsum() + least.sum()
    return float(spans.max()), tuple(order[: int(spans.argmax()) + 1].tolist())


def _waited(of: Figures) -> tuple[FloatArray, FloatArray]:
    """How long another microbatch waits at least for each F, and each B, of one that passes it
    there."""
    before_f = np.concatenate([np.zeros((1, of.f.shape[1])), of.f[:-1]])
    before_b = np.concatenate([of.b[1:], of.f[-1:]])
    rows = (of.f, before_f, of.into_f), (of.b, before_b, of.into_b)
    f, b = (
        np.maximum(0.0, own - np.maximum(0.0, delay.max(axis=1, keepdims=True) - delay - before))
        for own, before, delay in rows
    )
    return f, b


def memory_time(of: Figures) -> Bound:
    """Memory that microbatches hold, times how long, fits into a rank's limit times its span.

    Proof: microbatch j holds M_B of stage i from its F's start to its B's end, R_ij and its B at
    least, and then M_W while W runs. All of that is within the span of the stage's rank, which
    never holds more than its limit.
    """
    areas = (of.m_b * (of.trip + of.b) + of.m_w * of.w).sum(axis=1)
    of_ranks = np.bincount(of.owner, areas, len(of.limit))
    with np.errstate(divide="ignore", invalid="ignore"):
        spans = np.where(of_ranks > 0, of_ranks / of.limit, 0.0)
    rank, value = int(spans.argmax()), float(spans.max()) * (1 - ROUNDING)
    words = "what microbatches hold, times how long, fits into memory times the span"
    return Bound(value, "memory-time", words, rank)


def heads_and_tails(of: Figures) -> Bound:
    """Idle time before a rank's first B and after its last F, each stage on a rank of its own.

    *Head.* The first B of stage i is of a microbatch j whose F ran there before, so that it starts
    R_ij after the stage began at least. Until then the rank runs F's alone, j's and those that fit
    into memory beside it; they take no longer than the best fractional choice.

    *Tail.* From the start of the last F, of microbatch j, its B is R_ij away. Until then the rank
    runs that F, and B's and W's of microbatches that it holds, which fit into memory beside j
    (:func:`_choice`).

    Where not all M_B fit at once, the last F comes after the first B: both idle times add up.
    """
    work = (of.f + of.b + of.w).sum(axis=1)
    spans, idles = np.zeros(len(work)), np.zeros((2, len(work)))
    for i in range(len(work)):
        limit = of.limit[of.owner[i]]
        left = limit - of.m_b[i]
        # what runs beside j: j itself is among the choices, which makes the bound no higher
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
    """No choice of ops within each room takes longer than this: that of the best fractional one.

    ``kinds``: sizes and times of what each microbatch may add, the later ones on top of the
    earlier: M_W for its W, and what M_B is more for its B. Where a later one is worth more for its
    size than the earlier, taking it alone makes the choice no worse.
    """
    sizes, times = (np.concatenate(column) for column in zip(*kinds, strict=True))
    free = sizes <= 0
    total, sizes, times = float(times[free].sum()), sizes[~free], times[~free]
    by_worth = np.argsort(-times / sizes, kind="stable")
    ends = np.append(0.0, np.cumsum(sizes[by_worth]))
    sums = np.append(0.0, np.cumsum(times[by_worth]))
    return np.asarray(total + np.interp(np.maximum(0.0, rooms), ends, sums))
