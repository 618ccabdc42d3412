"""What a constructor of schedules leaves open: numbers that a search may turn."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pipeloom.ir.ops import FloatArray, IntArray

from .chain import Chain


class Setting(Protocol):
    """The open numbers of one constructor."""

    def build(self, chain: Chain, order: IntArray, f_end: FloatArray, b_end: FloatArray) -> bool:
        """Fills ``order``, shape (S, 3M), with each stage's packed ops; False where it gets stuck.

        ``f_end``, ``b_end``: (S, M) scratch.
        """
        ...

    def mutated(self, chain: Chain, rng: np.random.Generator) -> Setting:
        """Another setting that differs in one number or a few."""
        ...


def warm_one(warm: IntArray, chain: Chain, rng: np.random.Generator) -> IntArray:
    """``warm`` with one more or one less on one stage."""
    warm = warm.copy()
    warm[rng.integers(chain.stages)] += rng.choice((-1, 1))
    return np.clip(warm, 1, chain.capacity)


def warm_up_to(warm: IntArray, chain: Chain, rng: np.random.Generator) -> IntArray:
    """``warm`` with one more or one less on the first few stages."""
    warm = warm.copy()
    warm[: rng.integers(chain.stages) + 1] += rng.choice((-1, 1))
    return np.clip(warm, 1, chain.capacity)
