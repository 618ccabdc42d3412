"""Bounds for any map of stages to ranks: several stages per rank, in any order and number.

As in all bounds, B and W are separate and microbatches may overtake each other. Let l_r be the
lowest and h_r the highest stage of rank r.

- *The first op* of the rank is an F of l_r, because a microbatch of any other stage has passed l_r
  before. Let S_r be its start. down(a, b) is the least time from the start of F(a) to the start of
  F(b) of a microbatch. Then S_k >= S_r + down(l_r, l_k) if l_r <= l_k.
- *The first B* is one of h_r, since B(h_r) is the first of a microbatch's B's on the rank. Likewise
  *the last F* is one of h_r and *the last B* is one of l_r.
- turn(a, b) is the least time from the start of F(a), over the last stage, to the start of B(b).

In a schedule of cost C, the span of rank r is at most C (period) or C - down(0, l_r) (makespan: the
first op of all is an F of stage 0).

The file also has bounds for microbatches that go in both directions, where a rank runs different
stages of different microbatches. A *visit* is what a rank runs of one microbatch: F, B and W of one
stage. The B of a visit begins at least its turn after its F, as the microbatch passes all later
stages and comes back. Nothing else is assumed about where the microbatch is. The first op of a rank
is an F, as B and W follow the F of their own visit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.units import amount, counted, duration

from ...core.bound import Bound, starts_later
from ...core.linear_instance import LinearInstance
from ...core.tolerances import ROUNDING
from ..rank_model import RankModel, held_until_last_backward, most
from .host_model import HostModel


class Idle(NamedTuple):
    """Lower bound on the idle time of a rank.

    ``head``: before its first B of stage ``first``; ``tail``: after its last F of stage ``last``.
    ``total``: their sum if they are disjoint, else the larger one.
    """

    total: float
    head: float
    tail: float
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class GeneralPlacement:
    """The ranks with stages, and the least times of a microbatch between stages.

    ``f``, ``b``, ``w``: T_F, T_B, T_W by stage. ``down``: time from the start of F(0) to the start
    of F(s); ``back``: from the start of B(S-1) to the start of B(s); all (S,). ``linear``: the
    linear instance if every stage has a rank of its own, else None.
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
        """The least time from the start of F(a) to the start of B(b) of a microbatch."""
        return float(self.down[-1] - self.down[a] + self.f[-1] + self.back[b])

    def lag(self, host: HostModel) -> float:
        """By how much the span of the rank must be shorter than the cost; 0 for the period."""
        return float(self.down[host.lowest]) if self.objective is Objective.MAKESPAN else 0.0

    def head(self, host: HostModel, i: int) -> float:
        """The least idle time of the rank before its first B of its i-th stage.

        The microbatch of that B began on this rank at S_r or later, so the B starts at least
        turn(l_r, s_i) after S_r.
        """
        turn = self.turn(host.lowest, host.stages[i])
        return max(0.0, turn - host.before_first_backward(i))

    def tail(self, host: HostModel, i: int) -> float:
        """The least idle time of the rank between its last F of its i-th stage and a later B.

        For each stage s up to s_i, B(s) of the microbatch of that F starts at least turn(s_i, s)
        later. Until then the rank can run only this F, the microbatch's ops on stages above s, and
        what other microbatches have left.
        """
        beside = host.own(i) + host.beside_last_forward(i)
        left = np.cumsum((host.b + host.w)[: i + 1])  # from B(s) on
        ways = [self.turn(host.stages[i], stage) for stage in host.stages[: i + 1]]
        return max(0.0, float((np.array(ways) + left).max()) - beside)

    def idle(self, host: HostModel) -> Idle:
        """Head plus tail if not all F's can come before the first B, else the larger of the two."""
        heads, tails = (
            [of(host, i) for i in range(len(host.stages))] for of in (self.head, self.tail)
        )

        def total(at: tuple[int, int]) -> float:
            both = heads[at[0]], tails[at[1]]
            return max(both) if host.all_fit(min(at)) else sum(both)

        first, last = max(np.ndindex(len(heads), len(tails)), key=total)
        ends = host.stages[first], host.stages[last]
        return Idle(total((first, last)), heads[first], tails[last], *ends)

    def until_last_forward(self, host: HostModel, i: int) -> float:
        """The least time from S_r to the start of the rank's last F of its i-th stage.

        By then the rank has run everything except what the microbatch of that F has left (all its
        B's on stages up to this one) and what other microbatches have left
        (:meth:`.HostModel.beside_last_forward`). It has also idled in its heads, unless all F's may
        come before the first B.
        """
        done = host.work - host.own(i) - host.beside_last_forward(i)
        heads = (self.head(host, h) for h in range(len(host.stages)) if not host.all_fit(min(h, i)))
        return max(0.0, done) + max(heads, default=0.0)

    def way_back(self, name: str, words: str, far: HostModel, until: float, why: str) -> Bound:
        """Lower bound on the cost, given the time from a rank's start to the end of its last B.

        Let k be the rank ``far``, and ``until`` that time. The last B of k is one of l_k. Its
        microbatch goes on to l_r of each rank r with l_r < l_k, whose B and W follow; on rank k
        itself the W follows. ``why``: the reason for ``until``, for the explanation of the bound.
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
    """Each rank's work and its least idle time (:meth:`GeneralPlacement.idle`)."""
    idles = [placed.idle(host) for host in placed.hosts]
    spans = [host.work + placed.lag(host) for host in placed.hosts]
    at = int(np.argmax([span + idle.total for span, idle in zip(spans, idles, strict=True)]))
    host, idle = placed.hosts[at], idles[at]

    def numbers() -> list[str]:
        return [
            f"rank {host.rank} computes for {duration(host.work)} and idles at least "
            f"{duration(idle.total)}: {duration(idle.head)} before its first B of stage "
            f"{idle.first}, {duration(idle.tail)} after its last F of stage {idle.last}",
            *starts_later(placed.lag(host)),
        ]

    return Bound(spans[at] + idle.total, "head-tail", HEAD_TAIL_WORDS, host.rank, numbers)


def last_forward(placed: GeneralPlacement) -> Bound:
    """Bound by a rank's last F: with little memory it is late, and its microbatch must come back.

    Symbols are those of the module's docstring.

    Rank k starts the last F of its i-th stage s_i at least
    :meth:`GeneralPlacement.until_last_forward` after S_k. The microbatch of that F then runs up to
    the last stage and back to l_r, of any rank r with l_r <= l_k, where B and W of l_r follow. Rank
    r started at least down(l_r, l_k) before rank k. So rank r spans at least

        down(l_r, l_k) + until the last F of s_i on k + turn(s_i, l_r) + b + w of l_r.
    """
    best, rank, late, at = 0.0, None, placed.hosts[0], 0
    for k, i in ((host, i) for host in placed.hosts for i in range(len(host.stages))):
        until = placed.until_last_forward(k, i) + float(placed.down[k.lowest])
        for r in placed.hosts:
            if r.lowest <= k.lowest:
                since = until - float(placed.down[r.lowest]) + placed.turn(k.stages[i], r.lowest)
                ends = since + float(placed.b[r.lowest] + placed.w[r.lowest]) + placed.lag(r)
                if ends > best:
                    best, rank, late, at = ends, r.rank, k, i
    words = (
        "memory holds few microbatches, so that a rank's last F is late, and its microbatch has to "
        "come back"
    )

    def numbers() -> list[str]:
        return [
            f"rank {late.rank} starts its last F of stage {late.stages[at]} no earlier than "
            f"{duration(placed.until_last_forward(late, at))} after its first: only what its "
            "memory holds then may be left to run",
            f"that F's microbatch passes the later stages and comes back to rank {rank}",
        ]

    return Bound(best, "last-forward", words, rank, None if rank is None else numbers)


def through(placed: GeneralPlacement) -> Bound:
    """Every microbatch passes each rank and comes back to those with lower stages.

    From S_k to the end of its last B, rank k runs all F's and B's, and every W whose M_W does not
    fit into its memory at that end, and idles as :meth:`GeneralPlacement.idle` says. The rest is
    :meth:`GeneralPlacement.way_back`.
    """
    words = "every microbatch passes the later stages one after the other and comes back"

    def of(host: HostModel) -> Bound:
        until = host.count * float((host.f + host.b).sum()) + host.early_weights()
        why = f"all {counted(host.count, 'microbatch')} pass it one after the other"
        return placed.way_back("through", words, host, until + placed.idle(host).total, why)

    return max(map(of, placed.hosts), key=lambda bound: bound.value)


def turnover(placed: GeneralPlacement) -> Bound:
    """The memory-time that microbatches hold up to their B's fits before the rank's last B ends.

    On stage s a microbatch holds M_B for at least turn(s, s) + b_s
    (:func:`..rank_model.held_until_last_backward`). The rest is :meth:`GeneralPlacement.way_back`.
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
    """The memory-time of the microbatches on a rank is at most its memory limit times its span.

    On stage s a microbatch holds M_B for at least turn(s, s) + b_s, and M_W for w_s.
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


def rank_visits(problem: Problem) -> Iterator[tuple[int, RankModel]]:
    """Yield each rank that has visits, with a model in which each visit runs once."""
    costs = Costs.of(problem)
    f, b, w = (costs.durations[kind][:, None] for kind in range(3))
    passed = f + b + costs.into_f + costs.into_b
    turn = passed[::-1].cumsum(axis=0)[::-1] - b - costs.into_f  # sum over this and later rows
    columns = {"f": f, "b": b, "w": w, "m_b": costs.m_b[:, None], "m_w": costs.m_w[:, None]}
    for rank, limit in enumerate((costs.limit * (1 + ROUNDING)).tolist()):
        here = costs.owner == rank
        if here.any():
            arrays = {name: np.broadcast_to(x, turn.shape)[here] for name, x in columns.items()}
            yield rank, RankModel(**arrays, turn=turn[here], limit=limit, count=1)


def visits_head_tail(problem: Problem) -> Bound:
    """Idle time of a rank before its first B and after its last F.

    *Head.* Before its first B a rank has run only F's, each of which still holds its M_B
    (:meth:`.RankModel.forwards`). That B begins at least the least turn after the rank's start, as
    its own F began no earlier than the rank did.

    *Tail.* Once the last F has begun, the rank holds its M_B and what is left to run beside it: M_B
    of each visit whose B has not begun, and M_W of each whose W has not. Until the B of the last F,
    the rank can run only that F, and B's and W's that fit into the rest of the limit.

    The two are disjoint, and add up, if the M_B of all visits together exceed the limit: some F
    then begins after a B has ended.
    """
    idle = [(model.work + _idle(model), rank, model) for rank, model in rank_visits(problem)]
    value, rank, model = max(idle, key=lambda found: found[0])

    def numbers() -> list[str]:
        return [
            f"rank {rank} computes for {duration(model.work)} and idles at least "
            f"{duration(value - model.work)} before its first B and after its last F"
        ]

    return Bound(value, "head-tail", HEAD_TAIL_WORDS, rank, numbers)


def _idle(model: RankModel) -> float:
    first = max(0.0, float(model.turn.min()) - model.forwards())
    time = np.concatenate([model.b + model.w, model.w])
    size = np.concatenate([model.m_b, model.m_w])
    kinds = np.unique(np.stack([model.turn - model.f, model.m_b], axis=1), axis=0)
    last: float = min(
        max(0.0, turn - most(time, size, model.limit - held, 1)) for turn, held in kinds.tolist()
    )
    apart = float(model.m_b.sum()) > model.limit
    return first + last if apart else max(first, last)


def visits_throughput(problem: Problem) -> Bound:
    """The memory-time of the visits of a rank is at most its memory limit times its span."""
    found = [
        (model.held / model.limit, rank)
        for rank, model in rank_visits(problem)
        if 0 < model.limit < np.inf
    ]
    value, rank = max(found, default=(0.0, None))
    return Bound(value, "throughput", THROUGHPUT_WORDS, rank)
