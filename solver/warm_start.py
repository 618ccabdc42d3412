"""Schedules of the 1F1B kin that fit any memory limit: good ones before anything is searched.

They need no kernel but the simulator's, so they are there at once even where the list scheduler has
yet to be compiled. A stage keeps ``ahead`` microbatches between F and B, fewer the fewer stages are
left, in proportion where memory holds fewer than there are stages. Three stages, 2, 2 and 1 ahead,
W's right after their B's::

    stage 0  F0 F1 .  .  .  B0 W0 F2 .  B1 W1 .  .  .  B2 W2
    stage 1  .  F0 F1 .  B0 W0 .  .  B1 W1 F2 .  B2 W2
    stage 2  .  .  F0 B0 W0 F1 B1 W1 .  .  .  F2 B2 W2
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from pipeloom.ir.ops import IntArray, Op, OpKind, pack
from pipeloom.ir.problem import Problem

from .chain import Chain


def warm_starts(problem: Problem, chain: Chain) -> Iterator[tuple[IntArray, ...]]:
    """Orders of packed ops, one array a rank, each within the memory limit."""
    stages = range(chain.stages)
    share = float(chain.capacity.min()) / chain.stages
    waits = (list(stages), [0] * chain.stages, [chain.microbatches] * chain.stages)
    for slope, wait in product((share,) if share < 1 else (1.0, 2.0), waits):
        rows: list[list[Op]] = [[] for _ in range(problem.ranks)]
        for i, ahead in enumerate(warm_up(chain, slope)):
            rows[chain.ranks[i]] = in_turn(chain, i, ahead, wait[i])
        yield tuple(map(pack, rows))


def warm_up(chain: Chain, slope: float) -> list[int]:
    """How many microbatches each stage keeps between F and B: 1 on the last, ``slope`` more a stage."""
    later = np.arange(chain.stages)[::-1]
    ahead = 1 + np.floor(slope * later + 1e-9).astype(np.int64)
    return [int(n) for n in np.minimum(ahead, chain.capacity)]


def in_turn(chain: Chain, stage: int, ahead: int, wait: int) -> list[Op]:
    """``ahead`` F's, then B and F in turn; at most ``wait`` W's are left, fewer where F needs room.

    ``ahead`` M_B fit in the stage's memory.
    """
    ops: list[Op] = []
    m_b, m_w, limit = chain.m_b[stage], chain.m_w[stage], chain.limit[stage]
    forwards = weights = 0
    for k in range(chain.microbatches):
        while forwards < min(k + ahead, chain.microbatches):
            while weights < k and (1 + forwards - k) * m_b + (k - weights) * m_w > limit:
                ops.append(Op(OpKind.W, stage, weights))
                weights += 1
            ops.append(Op(OpKind.F, stage, forwards))
            forwards += 1
        ops.append(Op(OpKind.B, stage, k))
        while weights < k + 1 - wait:
            ops.append(Op(OpKind.W, stage, weights))
            weights += 1
    return ops + [Op(OpKind.W, stage, k) for k in range(weights, chain.microbatches)]
