"""Schedules built in rounds: in round k every stage takes some F's, then runs B(k).

The F's of a round are placed from the first stage to the last, the B's from the last to the first.
So when an op is placed, the end of the op that it waits for is known, and with it how long the rank
would idle; a scheduler that follows the clock cannot know that. W's fill the gaps that they fit in.
If a gap is too short for a W, the rank idles as long as its budget allows; once the budget is used
up, it runs a W anyway, which delays the next F or B.

In round 0 a stage takes ``warm`` F's, in later rounds one or none. It takes none in three cases:

- ``warm`` microbatches are already between its F and its B.
- Its parameter ``yields`` is set, the next stage has a further microbatch for an F and would send
  its B before this F ends, and the budget allows this stage to wait for that B.
- The parameter ``lockstep`` is set, and the next stage takes none.

The budget and ``yields`` follow the heuristic of Qi et al., "Zero Bubble Pipeline Parallelism"
(ICLR 2024, section 3.1): a stage may idle as long as the stage that has idled most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind

from ..core.kernels import packed
from ..core.linear_instance import LinearInstance
from ..core.tolerances import ROUNDING

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))
SCALE = 0.3  # standard deviation of a budget's change, in mean T_W's


class RoundParameters(NamedTuple):
    """The heuristic parameters of round-based construction; arrays are by stage, (S,).

    In each round, a stage runs one F or none, then one B. ``warm``: the number of F's in the first
    round, and the maximum number of microbatches between F and B. ``budget``: how long a stage may
    idle after its first F. ``yields``: whether a stage runs no F in a round if the next stage's B
    would arrive before that F ends; otherwise it runs the F. ``shared``: whether every stage may
    idle as long as the stage that has idled most, whatever its budget; otherwise only its budget
    counts. ``lockstep``: whether a stage runs no F in a round, other than the first, in which the
    next stage runs none; otherwise it may.
    """

    warm: IntArray
    budget: FloatArray
    yields: npt.NDArray[np.bool_]
    shared: bool
    lockstep: bool

    def mutated(self, linear: LinearInstance, rng: np.random.Generator) -> RoundParameters:
        """Return a copy of the parameters with one to three random changes."""
        parameters = self
        for _ in range(1 + int(rng.integers(3))):
            parameters = parameters._one_changed(linear, rng)
        return parameters

    def _one_changed(self, linear: LinearInstance, rng: np.random.Generator) -> RoundParameters:
        what = _MUTATIONS[int(rng.integers(len(_MUTATIONS)))]
        if what == "shared":
            return self._replace(shared=not self.shared)
        if what == "lockstep":
            return self._replace(lockstep=not self.lockstep)
        if what == "yields":
            yields = self.yields.copy()
            yields[rng.integers(linear.stages)] ^= True
            return self._replace(yields=yields)
        stage = int(rng.integers(linear.stages))
        if what == "budget":
            budget = self.budget.copy()
            moved = budget[stage] + SCALE * float(linear.w.mean()) * rng.standard_normal()
            budget[stage] = 0.0 if rng.random() < 0.1 else max(0.0, moved)
            return self._replace(budget=budget)
        warm = self.warm.copy()
        warm[stage if what == "warm" else 0 : stage + 1] += rng.choice((-1, 1))
        return self._replace(warm=np.clip(warm, 1, linear.capacity))


# what a mutation changes; repeated entries are likelier; "warm up to" changes `warm` of all stages
# up to a random one
_MUTATIONS = (
    *("warm", "warm", "warm up to"),
    *("budget", "budget", "budget", "yields", "shared", "lockstep"),
)


def round_parameters(
    linear: LinearInstance, warms: list[IntArray], idle: FloatArray
) -> Iterator[RoundParameters]:
    """Yield all parameters to try, for each warm-up in ``warms``.

    A warm-up is an array of how many F's each stage runs before its first B, (S,). ``idle``: the
    idle time of each stage in a good schedule, (S,); it is used as a budget.
    """
    none, every = np.zeros(linear.stages, dtype=bool), np.ones(linear.stages, dtype=bool)
    budgets = ((np.zeros_like(idle), True), (np.zeros_like(idle), False), (idle, False))
    shapes = [shape for warm in warms for shape in _shapes(warm)]
    for lockstep, yields, (budget, shared), warm in product(
        (True, False), (every, none), budgets, shapes
    ):
        yield RoundParameters(warm, np.maximum(0.0, budget), yields, shared, lockstep)


def _shapes(warm: IntArray) -> tuple[IntArray, ...]:
    """Return the warm-ups to try for ``warm``, the number of F's of each stage before its first B.

    They are ``warm`` and, before it, a variant that falls by at least 1 from stage to stage, down
    to 1. If ``warm`` itself falls in this way, it is the only one.
    """
    falling = warm.copy()
    for i in range(1, len(warm)):
        falling[i] = max(1, min(falling[i], falling[i - 1] - 1))
    return (warm,) if np.array_equal(warm, falling) else (falling, warm)


@kernel
def round_schedule(
    linear: LinearInstance,
    parameters: RoundParameters,
    order: IntArray,  # (S, 3M) out: packed ops
    f_end: FloatArray,  # (S, M) scratch
    b_end: FloatArray,  # (S, M) scratch
) -> bool:
    """Write the packed ops of all stages to ``order``; return whether the order is complete.

    It is incomplete if an F does not fit in memory, or if a B waits for an F that has not been
    placed.
    """
    f, b, w, m_b, m_w, limit, down, up = linear[:8]
    warm, budget, yields, shared, lockstep = parameters
    stages, microbatches = f_end.shape
    free, idle, held = np.zeros(stages), np.zeros(stages), np.zeros(stages)
    forwards = np.zeros(stages, dtype=np.int64)
    weights = np.zeros(stages, dtype=np.int64)
    takes = np.zeros(stages, dtype=np.int64)
    most = 0.0  # longest idle time of any stage
    for k in range(microbatches):  # k is also the number of B's that each stage has run
        for i in range(stages):
            takes[i] = 0
            if k == 0:
                takes[i] = warm[i]
            elif forwards[i] < microbatches and (lockstep or forwards[i] - k < warm[i]):
                takes[i] = 1
                if yields[i] and i + 1 < stages and forwards[i] >= forwards[i + 1] + 2:
                    comes = free[i + 1] + f[i + 1] + b[i + 1] + up[i]
                    ready, room, gone = free[i], held[i] + m_b[i], weights[i]
                    while room > limit[i] and gone < k:
                        room -= m_w[i]
                        ready += w[i]
                        gone += 1
                    allowed = max(budget[i], most if shared else 0.0)
                    if free[i] >= comes or (
                        ready + f[i] > comes and idle[i] + comes - free[i] <= allowed
                    ):
                        takes[i] = 0
        if k > 0 and lockstep:
            for i in range(stages - 2, -1, -1):
                takes[i] = min(takes[i], takes[i + 1])
        for step in range(2 * stages):
            backward = step >= stages
            i = 2 * stages - 1 - step if backward else step
            if backward and forwards[i] <= k:
                return False
            for _ in range(1 if backward else takes[i]):
                j = k if backward else forwards[i]
                comes = 0.0
                if backward:
                    if i + 1 < stages:
                        comes = b_end[i + 1, k] + up[i]
                else:
                    if i > 0 and forwards[i - 1] <= j:
                        break
                    if i > 0:
                        comes = f_end[i - 1, j] + down[i - 1]
                last = backward and i == 0 and forwards[0] == microbatches  # nothing waits for it
                allowed = max(budget[i], most if shared else 0.0)
                while weights[i] < k:
                    full = not backward and held[i] + m_b[i] > limit[i]
                    gap = comes - free[i]
                    if not (full or last) and (
                        gap <= 0.0 or (w[i] * (1 - ROUNDING) > gap and idle[i] + gap <= allowed)
                    ):
                        break
                    at = forwards[i] + k + weights[i]
                    order[i, at] = packed(_W, i, weights[i])
                    weights[i] += 1
                    held[i] -= m_w[i]
                    free[i] += w[i]
                if not backward and held[i] + m_b[i] > limit[i]:
                    return False
                if comes > free[i]:
                    if backward or j > 0:
                        idle[i] += comes - free[i]
                        most = max(most, idle[i])
                    free[i] = comes
                at = forwards[i] + k + weights[i]
                if backward:
                    order[i, at] = packed(_B, i, k)
                    held[i] += m_w[i] - m_b[i]
                    free[i] += b[i]
                    b_end[i, k] = free[i]
                else:
                    order[i, at] = packed(_F, i, j)
                    held[i] += m_b[i]
                    free[i] += f[i]
                    f_end[i, j] = free[i]
                    forwards[i] += 1
    for i in range(stages):
        for gone in range(weights[i], microbatches):
            order[i, 2 * microbatches + gone] = packed(_W, i, gone)
    return True
