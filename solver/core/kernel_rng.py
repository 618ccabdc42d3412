"""Random numbers for kernels: xorshift64*, whose state a kernel carries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import kernel

State = npt.NDArray[np.uint64]
"""(1,), changed with every number."""


def seeded(rng: np.random.Generator) -> State:
    return rng.integers(1, 1 << 62, size=1).astype(np.uint64)


@kernel
def random(state: State) -> float:
    """The next of xorshift64*: uniform in [0, 1)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0
