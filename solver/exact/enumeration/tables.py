"""A small problem as the kernel's tables: its classes of microbatches, and the moves of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.ops import FloatArray, OpKind
from pipeloom.ir.model.problem import Objective, Problem

from ...core.tolerances import ROUNDING
from .kernel import Moves, Small


@dataclass(frozen=True, slots=True)
class MicrobatchClass:
    """The microbatches that run ``stage`` on ``rank``; ``way``: which of the ways they go, those
    that are unlike on ways of their own."""

    stage: int
    rank: int
    way: int
    microbatches: tuple[int, ...]


def classes_of(costs: Costs) -> list[MicrobatchClass]:
    """All classes, way by way, each from the first stage to the last."""
    ways: defaultdict[tuple[bytes, ...], list[int]] = defaultdict(list)
    unlike = costs.durations.ndim > 2
    tables = (costs.durations, costs.m_b, costs.m_w, costs.into_f, costs.into_b) if unlike else ()
    for microbatch in range(costs.owner.shape[1]):
        own = (table[..., microbatch].tobytes() for table in (costs.owner, *tables))
        ways[tuple(own)].append(microbatch)
    return [
        MicrobatchClass(stage, rank, way, tuple(own))
        for way, own in enumerate(ways.values())
        for stage, rank in enumerate(costs.owner[:, own[0]].tolist())
    ]


class Tables:
    """The kernel's tables of a problem."""

    def __init__(self, problem: Problem, classes: Sequence[MicrobatchClass]) -> None:
        costs = Costs.of(problem)
        self._problem, self._classes = problem, classes
        own = [each.stage for each in classes], [each.microbatches[0] for each in classes]
        self._t: FloatArray = costs.durations[:4][(slice(None), *own)[: costs.durations.ndim]]
        self._both = np.minimum(self._t[OpKind.B] + self._t[OpKind.W], self._t[OpKind.BW])
        self._m_b, self._m_w = (table[own[: table.ndim]] for table in (costs.m_b, costs.m_w))
        self._limit = costs.limit * (1 + ROUNDING)
        self._fused = list(self._moves_of_two())

    def _moves_of_two(self) -> Iterator[tuple[int, int, int, float]]:
        """BW's and pairs that take less than their parts: classes of F, B and W, and the time."""
        t, time = self._t, self._problem.profile.pair_time
        saves = overlap_saves(self._problem)
        for b, back in enumerate(self._classes):
            if t[OpKind.BW, b] < t[OpKind.B, b] + t[OpKind.W, b]:
                yield -1, b, b, float(t[OpKind.BW, b])
            for f, forth in enumerate(self._classes):
                if saves and forth.rank == back.rank:
                    length = time(forth.stage, back.stage)
                    if length < t[OpKind.F, f] + self._both[b]:
                        yield f, b, b, length

    def moves(self) -> Moves:
        alone = [
            (*(c if kind == part else -1 for part in range(3)), float(self._t[kind, c]))
            for c in range(len(self._classes))
            for kind in range(3)
        ]
        rows = [*self._fused, *alone]
        parts = np.array([row[:3] for row in rows], dtype=np.int64)
        of_class = np.array([each.rank for each in self._classes], dtype=np.int64)
        filler = np.array([self._fills(f, b, w) for f, b, w in parts.tolist()])
        lengths = np.array([row[3] for row in rows])
        return Moves(parts, of_class[parts.max(axis=1)], lengths, filler)

    def _fills(self, f: int, b: int, w: int) -> bool:
        """Whether the move may be put into a gap."""
        rank = self._classes[max(f, b, w)].rank
        if sum(c >= 0 for c in (f, b, w)) > 1:
            return False
        if w >= 0:
            return True
        if any(self._classes[row[1]].rank == rank for row in self._fused):
            return False
        return bool(self._m_b[b] >= self._m_w[b]) if b >= 0 else self._fits_all(rank)

    def _fits_all(self, rank: int) -> bool:
        own = [c for c, each in enumerate(self._classes) if each.rank == rank]
        held = sum(float(self._m_b[c]) * len(self._classes[c].microbatches) for c in own)
        return held <= float(self._limit[rank])

    def small(self) -> Small:
        classes, costs = self._classes, Costs.of(self._problem)
        last = self._problem.stages - 1
        source = np.array(
            [
                [c - 1 if each.stage else -1 for c, each in enumerate(classes)],
                [c + 1 if each.stage < last else -1 for c, each in enumerate(classes)],
            ]
        )
        own = [each.stage for each in classes], [each.microbatches[0] for each in classes]
        t = self._t
        return Small(
            np.array([each.rank for each in classes], dtype=np.int64),
            np.array([len(each.microbatches) for each in classes], dtype=np.int64),
            source,
            np.array([costs.into_f[own], costs.into_b[own]]),
            np.array([t[OpKind.F], np.minimum(t[OpKind.B], t[OpKind.BW]), self._both]),
            self._savings(),
            np.ascontiguousarray(t[OpKind.W]),
            self._m_b,
            self._m_w,
            self._limit,
            self._problem.objective is Objective.PERIOD,
        )

    def _savings(self) -> FloatArray:
        saving = np.zeros((2, len(self._classes)))
        for f, b, _, length in self._fused:
            if f >= 0:
                saved = self._t[OpKind.F, f] + self._both[b] - length
                saving[0, f] = max(saving[0, f], saved)
                saving[1, b] = max(saving[1, b], saved)
        return saving
