"""The list scheduler for one stage per rank: simulates all ranks forward in time.

A free rank runs the first of these that is possible: a B whose input has arrived; an F whose input
has arrived, if warm-up and memory allow; a W, if an F lacks memory, more than ``defer`` W's wait,
or the next input arrives late enough. Otherwise it waits. Stage 0 may let some time pass between
two F's (``gap``). If memory holds fewer than P microbatches, that spacing decides where
microbatches on their way down meet those on their way up.

:func:`tune_linear_list` optimizes all parameters by simulated annealing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind

from ..core.kernels import State, earliest, normal, packed, random
from ..core.linear_instance import LinearInstance

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))
FILLS = (0.0, 0.5, 1.0)
PATIENCE = (0.0, 0.3, 1.0)
SAMPLES = 300  # samples of parameters with gaps
SHARES, EXTRA, PERIODS = (0.0, 0.95, 1.0, 1.05), (0.5, 1.0), (1, 2, 3, 4, 5, 6, 7)
"""A gap is a share of :func:`meeting`, plus an extra share of it once per period."""
ANY = 1 << 40  # no limit


class LinearListParameters(NamedTuple):
    """The heuristic parameters of the list scheduler, by stage; ``gap`` by microbatch.

    ``warm``: the most microbatches between F and B. ``defer``: the most W's that wait while an F
    could run. ``fill``: a W runs if the next input arrives no earlier than ``fill`` x T_W from now.
    ``patience``: an F does not start if a B arrives within ``patience`` x T_F. ``gap``: on stage 0,
    the least time from the start of one F to the start of the next.
    """

    warm: IntArray
    defer: IntArray
    fill: FloatArray
    patience: FloatArray
    gap: FloatArray

    @classmethod
    def uniform(
        cls, linear: LinearInstance, warm: IntArray, defer: IntArray, fill: float, patience: float
    ) -> LinearListParameters:
        every = np.ones(linear.stages)
        return cls(warm, defer, fill * every, patience * every, np.zeros(linear.microbatches))

    def copy(self) -> LinearListParameters:
        return LinearListParameters._make(array.copy() for array in self)

    def build(
        self, linear: LinearInstance, order: IntArray, f_end: FloatArray, b_end: FloatArray
    ) -> bool:
        cost, _ = linear_list_schedule(linear, self, False, order, f_end, b_end)
        return bool(np.isfinite(cost))


def linear_list_parameters(
    linear: LinearInstance, warms: list[IntArray]
) -> Iterator[LinearListParameters]:
    """The parameters to try with each of the warm-ups ``warms``.

    Those with gaps come first if memory holds few microbatches. Two microbatches meet without
    waiting if they are a multiple of one stage's F, B and both delays apart
    (:mod:`..bounds.low_memory.crossings`), so gaps are about that long.
    """
    if linear.capacity.min() < linear.stages:
        yield from _spaced(linear)
    stages = np.arange(linear.stages)
    defers = (np.full(linear.stages, ANY), stages, np.zeros_like(stages))
    for defer, fill, patience, warm in product(defers, FILLS, PATIENCE, warms):
        yield LinearListParameters.uniform(linear, warm, defer, fill, patience)


def _spaced(linear: LinearInstance) -> Iterator[LinearListParameters]:
    rng, anything = np.random.default_rng(0), np.full(linear.stages, ANY)
    for _ in range(SAMPLES):
        fill, patience = rng.uniform(0.6, 1.3), rng.uniform(0.1, 1.0)
        spaced = LinearListParameters.uniform(linear, linear.capacity, anything, fill, patience)
        spaced.gap[:] = rng.choice(SHARES) * meeting(linear)
        period = int(rng.choice(PERIODS))
        if period > 1:
            spaced.gap[period - 1 :: period] += rng.choice(EXTRA) * meeting(linear)
        yield spaced


def meeting(linear: LinearInstance) -> float:
    """The longest time of F, B and both delays to the next stage, over all stages."""
    return float((linear.f + linear.b + linear.down + linear.up).max())


@kernel
def linear_list_schedule(  # noqa: PLR0917
    linear: LinearInstance,
    parameters: LinearListParameters,
    makespan: bool,
    order: IntArray,  # (S, 3M) out: packed ops
    f_end: FloatArray,  # (S, M) scratch
    b_end: FloatArray,  # (S, M) scratch
) -> tuple[float, float]:
    """Fill ``order``; returns its cost and the mean span of the stages.

    Both are infinite if no op can start any more: ``warm`` or memory is too small.
    """
    f, b, w, m_b, m_w, limit, down, up = linear[:8]
    warm, defer, fill, patience, gap = parameters
    stages, microbatches = f_end.shape
    f_end[:] = np.inf
    b_end[:] = np.inf
    clock = np.full(stages, np.inf)  # when a rank decides next; infinite: until it is woken
    free, first = np.zeros(stages), np.zeros(stages)
    clock[0] = 0.0
    held = np.zeros(stages)
    forwards = np.zeros(stages, dtype=np.int64)
    backwards = np.zeros(stages, dtype=np.int64)
    weights = np.zeros(stages, dtype=np.int64)
    entered = -np.inf  # when stage 0 started its last F
    left = 3 * stages * microbatches
    while left > 0:
        i = earliest(clock)
        now = clock[i]
        if now == np.inf:
            return np.inf, np.inf
        nf, nb, nw = forwards[i], backwards[i], weights[i]
        f_comes = np.inf
        if nf < microbatches and nf - nb < warm[i]:
            f_comes = entered + gap[nf] if i == 0 else f_end[i - 1, nf] + down[i - 1]
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
        elif f_comes <= now and fits and b_comes >= now + patience[i] * f[i]:
            kind = _F
        elif pending and min(b_comes, f_comes if fits else np.inf) >= now + fill[i] * w[i]:
            kind = _W
        if kind < 0:
            comes = b_comes if f_comes <= now else min(b_comes, f_comes)
            clock[i] = max(comes, now)
            continue
        at = nf + nb + nw
        wakes = -1
        if kind == _F:
            order[i, at] = packed(_F, i, nf)
            if nf == 0:
                first[i] = now
            if i == 0:
                entered = now
            end = now + f[i]
            f_end[i, nf] = end
            forwards[i] += 1
            held[i] += m_b[i]
            if i + 1 < stages:
                wakes = i + 1
                arrival = end + down[i]
        elif kind == _B:
            order[i, at] = packed(_B, i, nb)
            end = now + b[i]
            b_end[i, nb] = end
            backwards[i] += 1
            held[i] += m_w[i] - m_b[i]
            if i > 0:
                wakes = i - 1
                arrival = end + up[i - 1]
        else:
            order[i, at] = packed(_W, i, nw)
            end = now + w[i]
            weights[i] += 1
            held[i] -= m_w[i]
        free[i] = end
        clock[i] = end
        if wakes >= 0 and clock[wakes] > max(arrival, free[wakes]):
            clock[wakes] = max(arrival, free[wakes])
        left -= 1
    spans = free - first
    return free.max() if makespan else spans.max(), spans.mean()


@kernel
def tune_linear_list(  # noqa: PLR0917
    linear: LinearInstance,
    parameters: LinearListParameters,  # changed in place
    makespan: bool,
    best: IntArray,  # (S, 3M) out: the best order found, if it costs less than best_cost
    best_cost: float,
    unit: float,  # size of the changes of a gap
    hot: float,  # temperature of the first move, in units of cost; `cold`: of the last
    cold: float,
    moves: int,
    state: State,  # changed in place
    stopped: npt.NDArray[np.bool_],  # (1,) ends the search once it is set
) -> float:
    """Simulated annealing of ``parameters`` with ``moves`` moves; returns the cost of ``best``."""
    warm, defer, fill, patience, gap = parameters
    capacity, stages, microbatches = linear.capacity, len(warm), len(gap)
    order = np.empty_like(best)
    f_end, b_end = np.empty((stages, microbatches)), np.empty((stages, microbatches))
    old_warm, old_defer, old_fill = warm.copy(), defer.copy(), fill.copy()
    old_patience, old_gap = patience.copy(), gap.copy()
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current = hot, np.inf
    for move in range(-1, moves):
        if stopped[0]:
            break
        temperature *= cooling
        if move >= 0:
            old_warm[:], old_defer[:], old_fill[:] = warm, defer, fill
            old_patience[:], old_gap[:] = patience, gap
            for _ in range(1 + int(2 * random(state))):
                kind, i = random(state), int(random(state) * stages)
                if kind < 0.55:
                    change_gaps(gap, capacity[0], unit, state)
                    continue
                reach = random(state)  # one stage, this and all later ones, or all stages
                last = i + 1 if reach < 0.6 else stages
                more = 1 if random(state) < 0.5 else -1
                by = 0.3 * normal(state)
                for k in range(0 if reach > 0.8 else i, last):
                    if kind < 0.65:
                        warm[k] = min(max(1, warm[k] + more), capacity[k])
                    elif kind < 0.75:
                        defer[k] = max(0, min(defer[k], microbatches) + more)
                    elif kind < 0.87:
                        fill[k] = max(0.0, fill[k] + by)
                    else:
                        patience[k] = max(0.0, patience[k] + by)
        cost, mean = linear_list_schedule(linear, parameters, makespan, order, f_end, b_end)
        # the mean span distinguishes the many settings of equal cost
        value = cost + 0.05 * mean
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current = value
            if cost < best_cost:
                best_cost = cost
                best[:] = order
        else:
            warm[:], defer[:], fill[:] = old_warm, old_defer, old_fill
            patience[:], gap[:] = old_patience, old_gap
    return best_cost


@kernel
def change_gaps(gap: FloatArray, turn: int, unit: float, state: State) -> None:
    """Change one gap, or from there on every gap, every ``turn``-th one, or at a random step."""
    microbatches = len(gap)
    at = int(random(state) * microbatches)
    way = random(state)
    if way < 0.3:
        by = unit if random(state) < 0.5 else -unit
    elif way < 0.6:
        by = 0.1 * unit * normal(state)
    elif way < 0.8:
        by = unit * normal(state)
    else:
        by = -np.inf
    reach = random(state)
    step = 1
    if reach < 0.4:
        step = microbatches
    elif reach < 0.65:
        step = turn
    elif reach < 0.85:
        step = 2 + int(random(state) * 7)
    for k in range(at, microbatches, step):
        gap[k] = max(0.0, gap[k] + by)
    if random(state) < 0.3 and at + 1 < microbatches:
        gap[at + 1] = max(0.0, gap[at + 1] - by) if by > -np.inf else gap[at + 1]
