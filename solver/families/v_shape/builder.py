"""A V schedule in the making: who has run what, until when, and what is there to run next.

A microbatch passes a rank on four legs: F down (its first chunk), F up (its second), B down (the
second) and B up (the first). Each leg takes it from rank to rank; on ranks P-1, 0 and P-1 it turns
round, and what the next leg needs is made there by the leg before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import fsum

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.problem import Problem

from ...core.unlike import typical

F_DOWN, F_UP, B_DOWN, B_UP = range(4)


@dataclass(frozen=True)
class MeanStage:
    """The one stage that all are taken for; ``m_w`` in units of M_B."""

    t_f: float
    t_b: float
    t_w: float
    delay: float
    m_w: float

    @classmethod
    def of(cls, problem: Problem) -> MeanStage:
        costs = Costs.of(typical(problem))
        owner = costs.owner[:, 0]
        crosses = owner[1:] != owner[:-1]
        delays = [*costs.into_f[1:, 0][crosses], *costs.into_b[:-1, 0][crosses]]
        t_f, t_b, t_w = (_mean(row.tolist()) for row in costs.durations[:3])
        m_b, m_w = _mean(costs.m_b.tolist()), _mean(costs.m_w.tolist())
        return cls(t_f, t_b, t_w, _mean(delays), m_w / m_b if m_b > 0 else 1.0)


def _mean(values: list[float]) -> float:
    return fsum(values) / len(values) if values else 0.0


class VBuilder:
    """Ranks that run legs of equal stages as early as they can, in the order of the calls.

    By rank: ``order``, the ops so far; ``clock``, when the last one ends; ``held``, memory in units
    of M_B; ``late``, the W's that still have to run; ``waited``, idle time since the first op, of
    which ``longest`` is that of the rank that has waited longest.
    """

    def __init__(self, stage: MeanStage, ranks: int, microbatches: int) -> None:
        self.stage, self.ranks, self.microbatches = stage, ranks, microbatches
        self.order: list[list[Op]] = [[] for _ in range(ranks)]
        self.clock, self.held, self.waited = ([0.0] * ranks for _ in range(3))
        self.longest = 0.0
        self.late: list[deque[Op]] = [deque() for _ in range(ranks)]
        self._ends: list[list[list[float]]] = [[[] for _ in range(ranks)] for _ in range(4)]
        self._length = (stage.t_f, stage.t_f, stage.t_b, stage.t_b)

    def count(self, rank: int, leg: int) -> int:
        """How many microbatches have passed ``rank`` on ``leg``."""
        return len(self._ends[leg][rank])

    def comes_from(self, rank: int, leg: int) -> int | None:
        """The other rank that makes what ``leg`` needs; None where it is this one, or none at
        all."""
        other = rank - 1 if leg in {F_DOWN, B_DOWN} else rank + 1
        return other if 0 <= other < self.ranks else None

    def ready(self, rank: int, leg: int) -> float | None:
        """When the input of the next microbatch is there; None while nobody has made it."""
        microbatch, other = self.count(rank, leg), self.comes_from(rank, leg)
        if microbatch == self.microbatches:
            return None
        if other is None and leg == F_DOWN:
            return 0.0
        ends = self._ends[leg - 1][rank] if other is None else self._ends[leg][other]
        if microbatch >= len(ends):
            return None
        return ends[microbatch] + (0.0 if other is None else self.stage.delay)

    def run(self, rank: int, leg: int) -> None:
        """The next microbatch's op of ``leg``, whose input is :meth:`ready`."""
        ready, microbatch = self.ready(rank, leg), self.count(rank, leg)
        assert ready is not None
        if self.order[rank]:
            self.waited[rank] += max(0.0, ready - self.clock[rank])
            self.longest = max(self.longest, self.waited[rank])
        self.clock[rank] = max(self.clock[rank], ready) + self._length[leg]
        self._ends[leg][rank].append(self.clock[rank])
        stage = rank if leg in {F_DOWN, B_UP} else 2 * self.ranks - 1 - rank
        if leg in {F_DOWN, F_UP}:
            self.order[rank].append(Op(OpKind.F, stage, microbatch))
            self.held[rank] += 1.0
        else:
            self.order[rank].append(Op(OpKind.B, stage, microbatch))
            self.late[rank].append(Op(OpKind.W, stage, microbatch))
            self.held[rank] += self.stage.m_w - 1.0

    def run_w(self, rank: int) -> None:
        self.order[rank].append(self.late[rank].popleft())
        self.clock[rank] += self.stage.t_w
        self.held[rank] -= self.stage.m_w
