"""Building blocks of kernels: random numbers, packed ops, the earliest rank, arrays of costs.

Random numbers come from the generator xorshift64*, whose state a kernel passes to each function
that draws one.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    FloatArray,
    IntArray,
)

from .tolerances import ROUNDING

inlined = partial(kernel, inline="always")  # calls would cost a fifth of a kernel's time
lean = partial(kernel, allocates=False)  # 3 times as fast if tuples of arrays are arguments
State = npt.NDArray[np.uint64]
"""State of the generator xorshift64*, shape (1,); each number drawn changes it."""


class CostArrays(NamedTuple):
    """The arrays of :class:`~pipeloom.ir.cost.cost_tables.Costs` that kernels need.

    Their names and shapes are the same as there, but ``limit`` includes the tolerance for rounding.
    """

    durations: FloatArray
    owner: IntArray
    into_f: FloatArray
    into_b: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    limit: FloatArray

    @classmethod
    def of(cls, c: Costs) -> CostArrays:
        limit = c.limit * (1 + ROUNDING)
        return cls(c.durations, c.owner, c.into_f, c.into_b, c.m_b, c.m_w, limit)


def seeded(rng: np.random.Generator) -> State:
    """Return a new generator state for kernels, seeded with a number drawn from ``rng``."""
    return rng.integers(1, 1 << 62, size=1).astype(np.uint64)


@lean
def random(state: State) -> float:
    """Draw the next number of xorshift64*, which is uniform in [0, 1)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@lean
def normal(state: State) -> float:
    """Draw an approximately standard normal number: the sum of twelve uniform ones, minus 6."""
    total = -6.0
    for _ in range(12):
        total += random(state)
    return total


@inlined
def kind_of(op: int) -> int:
    return op & KIND_MASK


@inlined
def fields(op: int) -> tuple[int, int, int]:
    """The kind, stage and microbatch of a packed op."""
    return op & KIND_MASK, op >> STAGE_SHIFT & STAGE_MASK, op >> MICROBATCH_SHIFT


@inlined
def packed(kind: int, stage: int, microbatch: int) -> int:
    return microbatch << MICROBATCH_SHIFT | stage << STAGE_SHIFT | kind


@inlined
def earliest(clock: FloatArray) -> int:
    """The rank with the smallest entry of ``clock``; if several have it, the first of them."""
    rank = 0
    for other in range(1, len(clock)):
        if clock[other] < clock[rank]:
            rank = other
    return rank
