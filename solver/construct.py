"""Schedules of one stage a rank from nothing: the list scheduler over a family of settings.

A setting says how many microbatches each stage takes in before its first B (``warm``), how many
W's it may put off (``defer``), and how long it waits for a B. The bound's own argument gives the
warm-up that matters: the fewest F's that let every first B come in time for a given cost
(:func:`bounds.fewest_forwards`). Fewer would exceed that cost; more only hold memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from pipeloom.ir.ops import FloatArray, IntArray
from pipeloom.ir.problem import Problem

from .bounds import fewest_forwards
from .chain import Chain
from .evaluate import Evaluator
from .greedy import greedy_kernel

EXCESS = (1e-9, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""How far above the bound, relative, the warm-ups aim."""
SLOPES = (2.0, 1.0, 0.7, 1.5, 3.0, 2.5)
"""F's before the first B that a stage has more than the next one; capped by memory."""
FILLS = (0.0, 0.5, 1.0)
PATIENCE = (0.0, 0.3, 1.0)
ANY = 1 << 40
"""No cap."""

Rows = tuple[IntArray, ...]
"""Packed ops, one array a rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What the list scheduler leaves open; see :mod:`.greedy`."""

    warm: IntArray
    defer: IntArray
    fill: float = 0.0
    patience: float = 0.0


class Constructor:
    """Runs the list scheduler on one problem of one stage a rank, its arrays made once."""

    def __init__(self, problem: Problem, chain: Chain) -> None:
        self.chain = chain
        self._ranks = problem.ranks
        lengths = np.zeros(problem.ranks, dtype=np.int64)
        lengths[chain.ranks] = 3 * chain.microbatches
        self._evaluator = Evaluator(problem, np.append(0, np.cumsum(lengths)))
        self._f_end = np.empty((chain.stages, chain.microbatches))
        self._b_end = np.empty_like(self._f_end)

    def build(self, setting: Setting) -> Rows | None:
        """Packed ops, one array a rank; None where the setting gets stuck."""
        c = self.chain
        order = np.empty((c.stages, 3 * c.microbatches), dtype=np.int64)
        complete = greedy_kernel(
            c.microbatches,
            c.f,
            c.b,
            c.w,
            c.m_b,
            c.m_w,
            c.limit,
            c.down,
            c.up,
            setting.warm,
            setting.defer,
            setting.fill,
            setting.patience,
            order,
            self._f_end,
            self._b_end,
        )
        return self._by_rank(order) if complete else None

    def cost(self, rows: Rows) -> float:
        return self._evaluator.cost(np.concatenate(rows))

    def _by_rank(self, order: IntArray) -> Rows:
        rows = [np.empty(0, dtype=np.int64)] * self._ranks
        for stage, rank in enumerate(self.chain.ranks.tolist()):
            rows[rank] = order[stage]
        return tuple(rows)


def settings(chain: Chain, bound: float, lags: FloatArray) -> Iterator[Setting]:
    """The family of settings, those that the bound suggests first."""
    warms = [fewest_forwards(chain, bound * (1 + excess), lags) for excess in EXCESS]
    warms += [_slope(chain, slope) for slope in SLOPES]
    stages = np.arange(chain.stages)
    defers = (np.full(chain.stages, ANY), stages, np.zeros_like(stages))
    for defer, fill, patience, warm in product(defers, FILLS, PATIENCE, warms):
        yield Setting(warm, defer, fill, patience)


def _slope(chain: Chain, slope: float) -> IntArray:
    later = np.arange(chain.stages)[::-1]
    return np.asarray(np.minimum(chain.capacity, np.floor(1 + slope * later).astype(np.int64)))
