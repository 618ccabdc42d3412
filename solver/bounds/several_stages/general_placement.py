"""Minimum times between ranks for any placement of stages, in any order and number per rank.

As in all bounds, B and W are separate and microbatches may overtake each other. Let l_r be the
lowest and h_r the highest stage of rank r.

- *The first op* of the rank is an F of l_r, because a microbatch on any other of its stages has
  passed l_r before. Let S_r be its start. down(a, b) is the minimum time from the start of F(a) to
  the start of F(b) of a microbatch. Then S_k >= S_r + down(l_r, l_k) if l_r <= l_k.
- *The last B* of the rank is one of l_r.
- turn(a, b) is the minimum time from the start of F(a), over the last stage, to the start of B(b)
  of a microbatch.

In a schedule of cost C, the span of rank r is at most C (period) or C - down(0, l_r) (makespan: the
first op of all is an F of stage 0).

The file also models ranks that run different stages of different microbatches, because microbatches
go in both directions. A *visit* is what a rank runs of one microbatch: F, B and W of one stage. The
B of a visit begins at least turn after its F, as the microbatch passes all later stages and comes
back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.units import duration

from ...core.bound import Bound, starts_later
from ...core.tolerances import ROUNDING
from ..rank_model import RankModel


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HostModel(RankModel):
    """A rank with several ``stages``, in ascending order; arrays are by stage, shape (K,).

    ``rank``: the number of the rank.
    """

    rank: int
    stages: tuple[int, ...]

    @property
    def lowest(self) -> int:
        return self.stages[0]

    @property
    def highest(self) -> int:
        return self.stages[-1]


@dataclass(frozen=True, slots=True, eq=False)
class GeneralPlacement:
    """The ranks that have stages, and the minimum times of a microbatch between stages.

    ``hosts``: these ranks. The arrays are by stage, shape (S,). ``f``, ``b``, ``w``: T_F, T_B, T_W.
    ``down``: the minimum time from the start of a microbatch's F(0) to the start of its F(s).
    ``back``: the minimum time from the start of its B(S-1) to the start of its B(s).
    """

    hosts: Sequence[HostModel]
    f: FloatArray
    b: FloatArray
    w: FloatArray
    down: FloatArray
    back: FloatArray
    objective: Objective

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
        return cls(hosts, f, b, w, down, back, problem.objective)

    def turn(self, a: int, b: int) -> float:
        """The minimum time from the start of a microbatch's F(a) to the start of its B(b)."""
        return float(self.down[-1] - self.down[a] + self.f[-1] + self.back[b])

    def lag(self, host: HostModel) -> float:
        """The minimum of the cost minus the span of the rank ``host``, over all schedules.

        It is 0 for the period; for the makespan, it is the minimum time before the rank's first op.
        """
        return float(self.down[host.lowest]) if self.objective is Objective.MAKESPAN else 0.0

    def way_back(self, name: str, words: str, far: HostModel, until: float, why: str) -> Bound:
        """A bound on the cost that follows from the time from a rank's start to its last B's end.

        Let k be the rank ``far``, and ``until`` a lower bound on that time. The last B of k is one
        of its lowest stage l_k. The microbatch of this B goes on to the lowest stage l_r of each
        rank r with l_r < l_k, where its B and W follow; on rank k itself the W follows. The bound
        is the highest that these ranks give.

        ``name``, ``words``: the name of the result, and its reason in one line. ``why``: the reason
        for ``until``, for the result's explanation.
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


def rank_visits(problem: Problem) -> Iterator[tuple[int, RankModel]]:
    """Yield (rank, model of its visits) for each rank that runs any op.

    A visit is F, B and W of one microbatch on one stage of the rank; in the model it is a kind that
    runs once. So the model is also valid if microbatches go in both directions.
    """
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
