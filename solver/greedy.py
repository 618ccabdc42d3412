"""The list scheduler that all constructed schedules of one stage a rank come from.

Time runs forward over all ranks at once. A free rank takes, in this order: a B that has come; an F
that has come, where warm-up and memory allow; a W, where F lacks memory, where more than ``defer``
of them wait, or where the next arrival is far enough away. Otherwise it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numba
import numpy as np

from pipeloom.ir.ops import MICROBATCH_SHIFT, STAGE_SHIFT, FloatArray, IntArray, OpKind

from .chain import Chain
from .setting import warm_one, warm_up_to

_F, _B, _W = int(OpKind.F), int(OpKind.B), int(OpKind.W)
FILLS = (0.0, 0.5, 1.0)
PATIENCE = (0.0, 0.3, 1.0)
ANY = 1 << 40
"""No cap."""


@dataclass(frozen=True, slots=True, eq=False)
class GreedySetting:
    """What the list scheduler leaves open: the arguments of its kernel, by stage."""

    warm: IntArray
    defer: IntArray
    fill: float = 0.0
    patience: float = 0.0

    def build(self, chain: Chain, order: IntArray, f_end: FloatArray, b_end: FloatArray) -> bool:
        return bool(
            greedy_kernel(
                chain.microbatches,
                chain.f,
                chain.b,
                chain.w,
                chain.m_b,
                chain.m_w,
                chain.limit,
                chain.down,
                chain.up,
                self.warm,
                self.defer,
                self.fill,
                self.patience,
                order,
                f_end,
                b_end,
            )
        )

    def mutated(self, chain: Chain, rng: np.random.Generator) -> GreedySetting:
        setting = self
        for _ in range(1 + int(rng.integers(3))):
            setting = _MUTATIONS[int(rng.integers(len(_MUTATIONS)))](setting, chain, rng)
        return setting


_Mutation = Callable[[GreedySetting, Chain, np.random.Generator], GreedySetting]


def _warm_one(setting: GreedySetting, chain: Chain, rng: np.random.Generator) -> GreedySetting:
    return replace(setting, warm=warm_one(setting.warm, chain, rng))


def _warm_up_to(setting: GreedySetting, chain: Chain, rng: np.random.Generator) -> GreedySetting:
    return replace(setting, warm=warm_up_to(setting.warm, chain, rng))


def _defer_one(setting: GreedySetting, chain: Chain, rng: np.random.Generator) -> GreedySetting:
    defer = np.minimum(setting.defer, chain.microbatches)
    defer[rng.integers(chain.stages)] += rng.choice((-2, -1, 1, 2))
    return replace(setting, defer=np.maximum(defer, 0))


def _fill(setting: GreedySetting, _: Chain, rng: np.random.Generator) -> GreedySetting:
    return replace(setting, fill=max(0.0, setting.fill + 0.2 * rng.standard_normal()))


def _patience(setting: GreedySetting, _: Chain, rng: np.random.Generator) -> GreedySetting:
    return replace(setting, patience=max(0.0, setting.patience + 0.2 * rng.standard_normal()))


_MUTATIONS: tuple[_Mutation, ...] = (
    *(_warm_one, _warm_one, _warm_up_to),
    *(_defer_one, _fill, _patience),
)


def greedy_settings(chain: Chain, warms: list[IntArray]) -> Iterator[GreedySetting]:
    """The family of settings, given warm-ups."""
    stages = np.arange(chain.stages)
    defers = (np.full(chain.stages, ANY), stages, np.zeros_like(stages))
    for defer, fill, patience, warm in product(defers, FILLS, PATIENCE, warms):
        yield GreedySetting(warm, defer, fill, patience)


@numba.njit(cache=True, nogil=True)
def greedy_kernel(  # noqa: PLR0917
    microbatches: int,
    f: FloatArray,
    b: FloatArray,
    w: FloatArray,
    m_b: FloatArray,
    m_w: FloatArray,
    limit: FloatArray,
    down: FloatArray,
    up: FloatArray,
    warm: IntArray,  # (S,) how many microbatches may be between F and B on a stage
    defer: IntArray,  # (S,) how many W's may wait while an F could run
    fill: float,  # a W runs where the next arrival is at least fill * T_W away
    patience: float,  # an F yields to a B that comes within patience * T_F
    order: IntArray,  # (S, 3M) out: packed ops
    f_end: FloatArray,  # (S, M) scratch
    b_end: FloatArray,  # (S, M) scratch
) -> bool:
    """Fills ``order``; False where no op can start any more (``warm`` or memory too small)."""
    stages = f.shape[0]
    f_end[:] = np.inf
    b_end[:] = np.inf
    clock = np.full(stages, np.inf)  # when a rank decides next; infinite: asleep
    free = np.zeros(stages)
    clock[0] = 0.0
    held = np.zeros(stages)
    forwards = np.zeros(stages, dtype=np.int64)
    backwards = np.zeros(stages, dtype=np.int64)
    weights = np.zeros(stages, dtype=np.int64)
    left = 3 * stages * microbatches
    while left > 0:
        i = 0
        for k in range(1, stages):
            if clock[k] < clock[i]:
                i = k
        now = clock[i]
        if now == np.inf:
            return False
        nf, nb, nw = forwards[i], backwards[i], weights[i]
        f_comes = np.inf
        if nf < microbatches and nf - nb < warm[i]:
            f_comes = 0.0 if i == 0 else f_end[i - 1, nf] + down[i - 1]
        b_comes = np.inf
        if nb < nf:
            b_comes = f_end[i, nb] if i == stages - 1 else b_end[i + 1, nb] + up[i]
        fits = held[i] + m_b[i] <= limit[i]
        pending = nw < nb
        kind = -1
        if b_comes <= now:
            kind = _B
        elif pending and ((f_comes <= now and not fits) or nb - nw > defer[i]):
            kind = _W
        elif f_comes <= now and fits and b_comes >= now + patience * f[i]:
            kind = _F
        elif pending and min(b_comes, f_comes if fits else np.inf) >= now + fill * w[i]:
            kind = _W
        if kind < 0:
            comes = b_comes if f_comes <= now else min(b_comes, f_comes)
            clock[i] = max(comes, now)
            continue
        at = nf + nb + nw
        wakes = -1
        if kind == _F:
            order[i, at] = nf << MICROBATCH_SHIFT | i << STAGE_SHIFT | _F
            end = now + f[i]
            f_end[i, nf] = end
            forwards[i] += 1
            held[i] += m_b[i]
            if i + 1 < stages:
                wakes = i + 1
                arrival = end + down[i]
        elif kind == _B:
            order[i, at] = nb << MICROBATCH_SHIFT | i << STAGE_SHIFT | _B
            end = now + b[i]
            b_end[i, nb] = end
            backwards[i] += 1
            held[i] += m_w[i] - m_b[i]
            if i > 0:
                wakes = i - 1
                arrival = end + up[i - 1]
        else:
            order[i, at] = nw << MICROBATCH_SHIFT | i << STAGE_SHIFT | _W
            end = now + w[i]
            weights[i] += 1
            held[i] -= m_w[i]
        free[i] = end
        clock[i] = end
        if wakes >= 0 and clock[wakes] > max(arrival, free[wakes]):
            clock[wakes] = max(arrival, free[wakes])
        left -= 1
    return True
