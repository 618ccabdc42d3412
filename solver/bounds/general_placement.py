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
from pipeloom.ir.units import amount, counted, duration

from ..core.bound import Bound, starts_later
from ..core.linear_instance import LinearInstance
from ..core.tolerances import ROUNDING
from .rank_model import RankModel, held_until_last_backward


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HostModel(RankModel):
    """Rank ``rank``, which has ``stages``, the lowest first; the arrays are by these."""

    rank: int
    stages: tuple[int, ...]

    @property
    def lowest(self) -> int:
        return self.stages[0]

    @property
    def highest(self) -> int:
        return self.stages[-1]

    @property
    def all_fit(self) -> bool:
        """Whether memory may hold all F's at once, so that the last need not wait for a B."""
        return self.count * float(self.m_b.sum()) <= self.limit


@dataclass(frozen=True, slots=True, eq=False)
class GeneralPlacement:
    """The ranks with stages, and the way of one microbatch through all stages.

    ``down``, ``back``, (S,): from the start of F(0) to that of F(s), from the start of B(S-1) to
    that of B(s). ``linear``: where every stage has a rank of its own.
    """

    hosts: Sequence[HostModel]
    f: FloatArray
    b: FloatArray
    w: FloatArray
    down: FloatArray
    back: FloatArray
    objective: Objective
    linear: LinearInstance | None

    @classmethod
    def of(cls, problem: Problem) -> GeneralPlacement:
        costs = Costs.of(problem)
        f, b, w = costs.durations[:3]
        down = np.append(0.0, np.cumsum(f[:-1] + costs.into_f[1:, 0]))
        ways = b[1:] + costs.into_b[:-1, 0]
        back = np.append(np.cumsum(ways[::-1])[::-1], 0.0)
        turns = down[-1] - down + f[-1] + back
        hosts = []
        for rank in range(problem.ranks):
            own = list(problem.placement.stages_of(rank))
            if own:
                arrays = {"f": f, "b": b, "w": w, "m_b": costs.m_b, "m_w": costs.m_w, "turn": turns}
                host = HostModel(
                    rank=rank,
                    stages=tuple(own),
                    limit=float(costs.limit[rank]) * (1 + ROUNDING),
                    count=problem.microbatches,
                    **{name: array[own] for name, array in arrays.items()},
                )
                hosts.append(host)
        return cls(hosts, f, b, w, down, back, problem.objective, LinearInstance.of(problem))

    def turn(self, a: int, b: int) -> float:
        """From the start of F(a) to the start of B(b) of one microbatch, at least."""
        return float(self.down[-1] - self.down[a] + self.f[-1] + self.back[b])

    def lag(self, host: HostModel) -> float:
        """The cost less the span that it leaves the rank."""
        return float(self.down[host.lowest]) if self.objective is Objective.MAKESPAN else 0.0

    def head(self, host: HostModel) -> float:
        """The least idle time of the rank before its first B: it has F's alone until then.

        The first B's microbatch began on this rank at S_r or later, turn(l_r, h_r) before.
        """
        return max(0.0, self.turn(host.lowest, host.highest) - host.forwards())

    def tail(self, host: HostModel) -> float:
        """The least idle time of the rank between its last F's start and one of the B's to come.

        B(s) of that F's microbatch is turn(h_r, s) away, and until then the rank has this F, the
        microbatch's B's and W's of higher stages, and those of what it holds besides.
        """
        idle, beside = 0.0, host.beside_the_last_forward() + float(self.f[host.highest])
        for at, stage in enumerate(host.stages):
            own = float((host.b + host.w)[at + 1 :].sum())
            idle = max(idle, self.turn(host.highest, stage) - own - beside)
        return idle

    def idle(self, host: HostModel) -> float:
        """Head and tail: apart where not all F's come before the first B, else the larger."""
        head, tail = self.head(host), self.tail(host)
        return max(head, tail) if host.all_fit else head + tail

    def until_last_forward(self, host: HostModel) -> float:
        """From S_r to the start of the rank's last F, at least.

        Then the rank has run all but that F, the B's and W's of its microbatch (no B of it has run,
        and its F's of this rank hold M_B) and those of what memory holds beside these. Its head is
        over, unless all F's may come before the first B.
        """
        own = float(self.f[host.highest] + (host.b + host.w).sum())
        done = host.work - own - host.beside_the_last_forward()
        return max(0.0, done) + (0.0 if host.all_fit else self.head(host))

    def way_back(self, name: str, words: str, far: HostModel, until: float, why: str) -> Bound:
        """The least cost where a rank's last B ends no earlier than ``until`` after its start.

        That B is one of l_k, k the rank; its microbatch goes on to l_r of any rank r with l_r <
        l_k, where B and W follow. On k itself its W does. ``why`` it takes so long.
        """
        k = far.lowest

        def span(near: HostModel) -> float:
            r = near.lowest
            back = self.back[r] + self.b[r] - self.back[k] - self.b[k] + self.w[r]
            return float(self.down[k] - self.down[r]) + until + float(back)

        near = max(
            (host for host in self.hosts if host.lowest <= k),
            key=lambda host: span(host) + self.lag(host),
        )

        def numbers() -> list[str]:
            lines = [
                f"rank {far.rank} takes at least {duration(until)} from its first F to the end of "
                f"its last B: {why}"
            ]
            if near is not far:
                lines.append(
                    f"rank {near.rank} begins before that and ends after it, "
                    f"{duration(span(near) - until)} in all: the way to rank {far.rank}, the way "
                    "back, and its last W"
                )
            return [*lines, *starts_later(self.lag(near))]

        return Bound(span(near) + self.lag(near), name, words, near.rank, numbers)


HEAD_TAIL_WORDS = (
    "few F's fit in memory before the first B comes back, few B's and W's are left after the last F"
)
THROUGHPUT_WORDS = "what microbatches hold, for as long as they hold it, fits in memory times span"


def placed_head_tail(placed: GeneralPlacement) -> Bound:
    """Each rank's work, and the time that it idles at least (:meth:`GeneralPlacement.idle`)."""
    host = max(placed.hosts, key=lambda host: host.work + placed.idle(host) + placed.lag(host))
    idle, lag = placed.idle(host), placed.lag(host)

    def numbers() -> list[str]:
        return [
            f"rank {host.rank} computes for {duration(host.work)} and idles at least "
            f"{duration(idle)}: {duration(placed.head(host))} before its first B, "
            f"{duration(placed.tail(host))} after its last F",
            *starts_later(lag),
        ]

    return Bound(host.work + idle + lag, "head-tail", HEAD_TAIL_WORDS, host.rank, numbers)


def last_forward(placed: GeneralPlacement) -> Bound:
    """A rank's last F comes late where memory is small, and its microbatch has to come back.

    Rank k starts its last F no earlier than :meth:`GeneralPlacement.until_last_forward` after S_k.
    Its microbatch then runs up to the last stage and back to l_r of any rank r with l_r <= l_k,
    which started at least down(l_r, l_k) before rank k; there B and W of l_r follow. So rank r
    spans at least

        down(l_r, l_k) + until the last F of k + turn(h_k, l_r) + b + w of l_r.
    """
    best, rank, late = 0.0, None, placed.hosts[0]
    for k in placed.hosts:
        until = placed.until_last_forward(k) + float(placed.down[k.lowest])
        for r in placed.hosts:
            if r.lowest <= k.lowest:
                since = until - float(placed.down[r.lowest]) + placed.turn(k.highest, r.lowest)
                ends = since + float(placed.b[r.lowest] + placed.w[r.lowest]) + placed.lag(r)
                if ends > best:
                    best, rank, late = ends, r.rank, k
    words = (
        "memory holds few microbatches, so that a rank's last F is late, and its microbatch has to "
        "come back"
    )

    def numbers() -> list[str]:
        return [
            f"rank {late.rank} starts its last F no earlier than "
            f"{duration(placed.until_last_forward(late))} after its first: only what its memory "
            "holds then may be left to run",
            f"that F's microbatch passes the later stages and comes back to rank {rank}",
        ]

    return Bound(best, "last-forward", words, rank, None if rank is None else numbers)


def through(placed: GeneralPlacement) -> Bound:
    """Every microbatch passes each rank and comes back to those with lower stages.

    From S_k to the end of its last B rank k runs all F's and B's, and every W whose M_W does not
    fit into its memory then, and idles as :meth:`GeneralPlacement.idle` says; then see
    :meth:`GeneralPlacement.way_back`.
    """
    words = "every microbatch passes the later stages one after the other and comes back"

    def of(host: HostModel) -> Bound:
        until = host.count * float((host.f + host.b).sum()) + host.early_weights()
        why = f"all {counted(host.count, 'microbatch')} pass it one after the other"
        return placed.way_back("through", words, host, until + placed.idle(host), why)

    return max(map(of, placed.hosts), key=lambda bound: bound.value)


def turnover(placed: GeneralPlacement) -> Bound:
    """The memory that microbatches hold up to their B's, times their time, fits before the last B.

    On stage s a microbatch holds M_B for turn(s, s) + b_s at least
    (:func:`.rank_model.held_until_last_backward`). Then see :meth:`GeneralPlacement.way_back`.
    """
    words = (
        "memory holds few microbatches until each comes back, and the last one has to come all the "
        "way"
    )
    why = "its memory holds few of them, each until it has come back"

    def of(host: HostModel) -> Bound:
        return placed.way_back("turnover", words, host, held_until_last_backward(host), why)

    return max(map(of, placed.hosts), key=lambda bound: bound.value)


def throughput(placed: GeneralPlacement) -> Bound:
    """The memory that microbatches hold, times their time, fits in a rank's memory times its span.

    On stage s a microbatch holds M_B for turn(s, s) + b_s at least, and M_W for w_s.
    """
    spans = [host.holding_span() for host in placed.hosts]
    values = [span + placed.lag(host) for span, host in zip(spans, placed.hosts, strict=True)]
    at = int(np.argmax(values))
    host = placed.hosts[at]

    def numbers() -> list[str]:
        held = (
            f"a microbatch holds {amount(host.m_b[0])} of rank {host.rank}'s memory for at least "
            f"{duration(host.turn[0] + host.b[0])}, there and back: {host.count} of them"
            if len(host.stages) == 1
            else f"what {counted(host.count, 'microbatch')} hold on rank {host.rank}, each there "
            "and back,"
        )
        return [
            f"{held} within a limit of {amount(host.limit)} need {duration(spans[at])}, though the "
            f"rank computes for {duration(host.work)} only",
            *starts_later(placed.lag(host)),
        ]

    return Bound(values[at], "throughput", THROUGHPUT_WORDS, host.rank, numbers)
