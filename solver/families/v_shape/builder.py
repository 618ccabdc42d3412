"""A partial V schedule: which ops have run, when they end, and which can run next.

A microbatch passes a rank on four *legs*: F down (the rank's first chunk), F up (its second), B
down (the second) and B up (the first). On each leg it goes from rank to rank. It turns round on
rank P-1 after F down, on rank 0 after F up, and on rank P-1 after B down; there the previous leg
produces the input of the next one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import fsum

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import MICROBATCH_SHIFT, STAGE_SHIFT, IntArray, OpKind
from pipeloom.ir.model.problem import Problem

from ...core.unlike import typical

F_DOWN, F_UP, B_DOWN, B_UP = range(4)
_F, _B, _W = int(OpKind.F), int(OpKind.B), int(OpKind.W)


@dataclass(frozen=True)
class MeanStage:
    """A stage with the mean times of all stages of a problem.

    ``delay``: the mean delay between two ranks. ``m_w``: the mean M_W in units of the mean M_B.
    """

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
    """The V schedule of ranks with equal stages, built op by op.

    Each op that is run starts as early as possible after the ops that its rank has run before.
    Values by rank: ``order``, the packed ops run so far; ``clock``, when the last of them ends;
    ``held``, the memory held in units of M_B; ``late``, the packed W's that wait (their B's have
    run); ``waited``, the idle time since the first op. ``longest``: the maximum of ``waited`` over
    the ranks. A *leg* is a microbatch's way over the ranks: F down, F up, B down or B up.
    """

    def __init__(self, stage: MeanStage, ranks: int, microbatches: int) -> None:
        self.stage, self.ranks, self.microbatches = stage, ranks, microbatches
        self._order: list[list[int]] = [[] for _ in range(ranks)]
        self.clock, self.held, self.waited = ([0.0] * ranks for _ in range(3))
        self.longest = 0.0
        self.late: list[deque[int]] = [deque() for _ in range(ranks)]
        self._ends: list[list[list[float]]] = [[[] for _ in range(ranks)] for _ in range(4)]
        self._inputs = [[self._input(rank, leg) for rank in range(ranks)] for leg in range(4)]
        self._length = (stage.t_f, stage.t_f, stage.t_b, stage.t_b)

    @property
    def order(self) -> list[IntArray]:
        return [np.array(row, dtype=np.int64) for row in self._order]

    def count(self, rank: int, leg: int) -> int:
        """Return how many microbatches have passed ``rank`` on ``leg``.

        ``leg``, here and in the other methods: F_DOWN, F_UP, B_DOWN or B_UP.
        """
        return len(self._ends[leg][rank])

    def comes_from(self, rank: int, leg: int) -> int | None:
        """Return the other rank from which ``rank`` receives its input on ``leg``.

        Returns None if ``rank`` itself produces that input, or if no input is needed.
        """
        other = rank - 1 if leg in {F_DOWN, B_DOWN} else rank + 1
        return other if 0 <= other < self.ranks else None

    def _input(self, rank: int, leg: int) -> tuple[list[float] | None, float]:
        """Return when the inputs of ``rank`` on ``leg`` are produced, and their delay to ``rank``.

        The times are a list by microbatch, which grows as ops are run, or None if no input is
        needed. The delay is a single number, the same for all microbatches.
        """
        other = self.comes_from(rank, leg)
        if other is not None:
            return self._ends[leg][other], self.stage.delay
        return (None if leg == F_DOWN else self._ends[leg - 1][rank]), 0.0

    def ready(self, rank: int, leg: int) -> float | None:
        """Return when the next microbatch's input on ``leg`` arrives at ``rank``.

        Returns 0 if no input is needed, and None if the input has not been produced yet or all
        microbatches have passed ``rank`` on ``leg``.
        """
        microbatch = len(self._ends[leg][rank])
        if microbatch == self.microbatches:
            return None
        made, delay = self._inputs[leg][rank]
        if made is None:
            return 0.0
        return made[microbatch] + delay if microbatch < len(made) else None

    def run(self, rank: int, leg: int) -> None:
        """Run the F or B of the next microbatch on ``leg``; its input must be :meth:`ready`."""
        ready, ends, order = self.ready(rank, leg), self._ends[leg][rank], self._order[rank]
        assert ready is not None
        clock = self.clock[rank]
        if order and ready > clock:
            self.waited[rank] += ready - clock
            self.longest = max(self.longest, self.waited[rank])
        stage = rank if leg in {F_DOWN, B_UP} else 2 * self.ranks - 1 - rank
        place = len(ends) << MICROBATCH_SHIFT | stage << STAGE_SHIFT
        self.clock[rank] = max(clock, ready) + self._length[leg]
        ends.append(self.clock[rank])
        if leg <= F_UP:
            order.append(place | _F)
            self.held[rank] += 1.0
        else:
            order.append(place | _B)
            self.late[rank].append(place | _W)
            self.held[rank] += self.stage.m_w - 1.0

    def run_w(self, rank: int) -> None:
        self._order[rank].append(self.late[rank].popleft())
        self.clock[rank] += self.stage.t_w
        self.held[rank] -= self.stage.m_w
