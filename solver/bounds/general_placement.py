"""Bounds for any map of stages to ranks: several stages a rank, in any order, uneven counts.

As everywhere, B and W are apart and microbatches may overtake. On rank r, whose stages are l_r (the
lowest) to h_r (the highest) with any others between:

- *The first op* is an F of l_r: any other's microbatch has passed l_r before. For its start S_r:
  S_k >= S_r + down(l_r, l_k) where l_r <= l_k, down(a, b) being the way of a microbatch from the
  start of F(a) to that of F(b).
- *The first B* is one of h_r, since B(h_r) comes first of a microbatch's B's; *the last F* is one
  of h_r and *the last B* one of l_r, likewise.
- turn(a, b) is the way from the start of F(a) over the last stage to the start of B(b).

A cost C leaves rank r a span of C (period) or of C - down(0, l_r) (makespan: the first op of all is
an F of stage 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Objective, Problem

from ..core.tolerances import ROUNDING
from .memory_time import ramp, rate, span_that_holds
from .rank_capacity import Group, whole


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """A rank with ``stages``, the lowest first, and their times and sizes."""

    stages: tuple[int, ...]
    group: Group

    @property
    def lowest(self) -> int:
        return self.stages[0]

    @property
    def highest(self) -> int:
        return self.stages[-1]

    @property
    def all_fit(self) -> bool:
        """Whether memory may hold all F's at once, so that the last need not wait for a B."""
        group = self.group
        return group.forwards() >= group.microbatches * float(group.f.sum()) * (1 - ROUNDING)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The ranks with stages, and the way of one microbatch through all stages.

    ``down``, ``back``, (S,): from the start of F(0) to that of F(s), from the start of B(S-1) to
    that of B(s).
    """

    hosts: Sequence[Host]
    f: FloatArray
    b: FloatArray
    w: FloatArray
    down: FloatArray
    back: FloatArray
    objective: Objective

    @classmethod
    def of(cls, problem: Problem) -> Placed:
        """Activations travel."""
        costs = Costs.of(problem)
        f, b, w = costs.durations[:3]
        down = np.append(0.0, np.cumsum(f[:-1] + costs.into_f[1:, 0]))
        legs = b[1:] + costs.into_b[:-1, 0]
        back = np.append(np.cumsum(legs[::-1])[::-1], 0.0)
        hosts = []
        for rank in range(problem.ranks):
            own = list(problem.placement.stages_of(rank))
            if own:
                limit = float(costs.limit[rank]) * (1 + ROUNDING)
                sizes = costs.m_b[own], costs.m_w[own]
                group = Group(f[own], b[own], w[own], *sizes, limit, problem.microbatches)
                hosts.append(Host(tuple(own), group))
        return cls(hosts, f, b, w, down, back, problem.objective)

    def turn(self, a: int, b: int) -> float:
        """From the start of F(a) to the start of B(b) of one microbatch, at least."""
        return float(self.down[-1] - self.down[a] + self.f[-1] + self.back[b])

    def lag(self, host: Host) -> float:
        """How much less than the cost the rank may span."""
        return float(self.down[host.lowest]) if self.objective is Objective.MAKESPAN else 0.0

    def head(self, host: Host) -> float:
        """How long the rank idles at least before its first B: it has F's alone until then.

        The first B's microbatch began on this rank at S_r or later, turn(l_r, h_r) before.
        """
        return max(0.0, self.turn(host.lowest, host.highest) - host.group.forwards())

    def tail(self, host: Host) -> float:
        """How long the rank idles at least between its last F's start and one of the B's to come.

        B(s) of that F's microbatch is turn(h_r, s) away, and until then the rank has this F, the
        microbatch's B's and W's of higher stages, and those of what it holds besides.
        """
        group, idle = host.group, 0.0
        beside = group.beside_the_last_forward() + float(self.f[host.highest])
        for at, stage in enumerate(host.stages):
            own = float((group.b + group.w)[at + 1 :].sum())
            idle = max(idle, self.turn(host.highest, stage) - own - beside)
        return idle

    def idle(self, host: Host) -> float:
        """Head and tail: apart where not all F's come before the first B, else the larger."""
        head, tail = self.head(host), self.tail(host)
        return max(head, tail) if host.all_fit else head + tail

    def until_last_forward(self, host: Host) -> float:
        """From S_r to the start of the rank's last F, at least.

        Then the rank has run all but that F, the B's and W's of its microbatch (no B of it has run,
        and its F's of this rank hold M_B) and those of what memory holds beside these. Its head is
        over, unless all F's may come before the first B.
        """
        group = host.group
        own = float(self.f[host.highest] + (group.b + group.w).sum())
        done = group.work - own - group.beside_the_last_forward()
        return max(0.0, done) + (0.0 if host.all_fit else self.head(host))


def placed_head_tail(placed: Placed) -> float:
    """Each rank's work, and the time that it idles at least (:meth:`Placed.idle`)."""
    return max(host.group.work + placed.idle(host) + placed.lag(host) for host in placed.hosts)


def last_forward(placed: Placed) -> float:
    """A rank's last F comes late where memory is small, and its microbatch has to come back.

    Rank k starts its last F no earlier than :meth:`Placed.until_last_forward` after S_k. Its
    microbatch then runs up to the last stage and back to l_r of any rank r with l_r <= l_k, which
    started at least down(l_r, l_k) before rank k; there B and W of l_r follow. So rank r spans at
    least

        down(l_r, l_k) + until the last F of k + turn(h_k, l_r) + b + w of l_r.
    """
    best = 0.0
    for k in placed.hosts:
        until = placed.until_last_forward(k) + float(placed.down[k.lowest])
        for r in placed.hosts:
            if r.lowest <= k.lowest:
                since = until - float(placed.down[r.lowest]) + placed.turn(k.highest, r.lowest)
                ends = since + float(placed.b[r.lowest] + placed.w[r.lowest])
                best = max(best, ends + placed.lag(r))
    return best


def placed_through(placed: Placed) -> float:
    """Every microbatch passes each rank and comes back to those with lower stages.

    From S_k to the end of its last B rank k runs all F's and B's, and every W whose M_W does not
    fit into its memory then, and idles as :meth:`Placed.idle` says; then see :func:`_and_back`.
    """
    best = 0.0
    for host in placed.hosts:
        group = host.group
        until = group.microbatches * float((group.f + group.b).sum()) + group.early_weights()
        best = max(best, _and_back(placed, host, until + placed.idle(host)))
    return best


def turnover(placed: Placed) -> float:
    """What a rank's microbatches hold until their B's fits in memory times the time to the last B.

    On stage s a microbatch holds M_B for turn(s, s) + b_s at least. The rank holds at most ``room``
    of that, a whole number of M_B's where all are equal, and less while a W runs, beside whose M_W
    fewer may fit. Moreover, it holds t after its start at most what :func:`placed_throughput` says,
    and t before the end of its last B at most the largest M_B and t times the largest M_B / b:
    there W's count as if they took the place of nothing. Then see :func:`_and_back`.
    """
    return max(_and_back(placed, host, _until_last_backward(placed, host)) for host in placed.hosts)


def _until_last_backward(placed: Placed, host: Host) -> float:
    group = host.group
    turns = np.array([placed.turn(s, s) for s in host.stages])
    needed = group.microbatches * float((group.m_b * (turns + group.b)).sum())
    largest = float(group.m_b.max())
    rise, fall = max(map(rate, group.m_b, group.f)), max(map(rate, group.m_b, group.b))
    room = min(whole(group.m_b, group.limit), group.microbatches * float(group.m_b.sum()))
    beside = whole(group.m_b, group.limit - float(group.m_w.min()))
    if beside < room:
        ramps = sum((room - largest) / slope for slope in (rise, fall))
        needed += (room - beside) * max(0.0, group.early_weights() - ramps)
    return span_that_holds(
        needed,
        room,
        group.work,
        lambda half: ramp(room, largest, rise, half) + ramp(room, largest, fall, half),
    )


def _and_back(placed: Placed, host: Host, until: float) -> float:
    """The cost, at least, where a rank's last B ends no earlier than ``until`` after its start.

    That B is one of l_k, k the rank; its microbatch goes on to l_r of any rank r with l_r < l_k,
    where B and W follow. On k itself its W does.
    """
    best, k = 0.0, host.lowest
    for other in placed.hosts:
        r = other.lowest
        if r <= k:
            back = placed.back[r] + placed.b[r] - placed.back[k] - placed.b[k] + placed.w[r]
            span = float(placed.down[k] - placed.down[r]) + until + float(back)
            best = max(best, span + placed.lag(other))
    return best


def placed_throughput(placed: Placed) -> float:
    """What a rank's microbatches hold, for as long as they hold it, fits in memory times span.

    On stage s a microbatch holds M_B for turn(s, s) + b_s at least, and M_W for w_s. The rank holds
    at most its limit; t after its start at most what F's can have taken, the largest M_B and t
    times the largest M_B / f more; t before its end at most the largest M_B and t times the larger
    of the largest M_B / (b + w) and M_W / w, as all but the op that runs then needs its B and W, or
    its W, before the end. Each half of a span holds at most the integral of its own ramp.
    """
    return max(_holding_span(placed, host) + placed.lag(host) for host in placed.hosts)


def _holding_span(placed: Placed, host: Host) -> float:
    group = host.group
    turns = np.array([placed.turn(s, s) for s in host.stages])
    held = group.m_b * (turns + group.b) + group.m_w * group.w
    needed, largest = group.microbatches * float(held.sum()), float(group.m_b.max())
    limit = min(group.limit, group.microbatches * float(group.m_b.sum()))
    rise = max(map(rate, group.m_b, group.f))
    fall = max(*map(rate, group.m_b, group.b + group.w), *map(rate, group.m_w, group.w))
    return span_that_holds(
        needed,
        limit,
        group.work,
        lambda half: ramp(limit, largest, rise, half) + ramp(limit, largest, fall, half),
    )
