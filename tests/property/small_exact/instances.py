"""Random problems by kind, reproducible from their seed.

Most have at most twelve (stage, microbatch) pairs. Times and sizes are seldom round numbers. Memory
limits are often exactly what some microbatches hold, or very slightly more or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pipeloom.ir import Link, Links, Objective, Placement, Problem, Profile, Sharing, StageProfile

CELLS = 12
FEW_CELLS = 6
"""The limit for kinds with many orders: recomputation, offload, unlike microbatches."""
MOST_RANKS = 6

Rng = np.random.Generator
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def placed(
    stages: tuple[StageProfile, ...],
    microbatches: int,
    placement: Placement,
    limit: float,
    objective: Objective = Objective.PERIOD,
    **profile: Any,
) -> Problem:
    """Stages on a given placement, with the same limit for all ranks and no delays.

    ``profile``: other fields of the profile.
    """
    ranks = 1 + max(placement.owners)
    whole = Profile(stages, ranks, **{"t_comm": 0.0} | profile)
    return Problem(whole, microbatches, placement, (limit,) * ranks, objective)


def problem_of(kind: str, seed: int) -> Problem:
    """A random problem of a kind in :data:`KINDS`, reproducible from the seed."""
    return KINDS[kind](np.random.default_rng([11, seed]))


def _times(stages: int, rng: Rng) -> Numbers:
    """T_F, T_B, T_W of each stage: small integers, values within 20 % of each other, or any."""
    way = rng.integers(3)
    if way == 0:
        return rng.integers(0, 5, (stages, 3)).astype(np.float64)
    if way == 1:
        return np.asarray(rng.uniform(1, 10, 3) * rng.uniform(0.8, 1.2, (stages, 3)))
    return rng.uniform(0.5, 10, (stages, 3))


def _sizes(stages: int, rng: Rng) -> Numbers:
    """M_B and M_W of each stage, shape (stages, 2).

    M_B is 1, the same for all stages, or any value; M_W is 0, M_B, or a share of it.
    """
    way = rng.integers(3)
    m_b = np.ones(stages) if way == 0 else np.full(stages, rng.uniform(0.3, 3))
    m_b = rng.uniform(0.3, 3, stages) if way == 2 else m_b
    share = rng.choice([0.0, 1.0, rng.uniform()]), rng.uniform(0, 1, stages)
    return np.stack([m_b, m_b * share[rng.integers(2)]], axis=1)


def _stages(number: int, rng: Rng) -> tuple[StageProfile, ...]:
    """Random stages; in a third of all cases, they are equal."""
    rows = np.hstack([_times(number, rng), _sizes(number, rng)])
    if rng.random() < 1 / 3:
        rows[:] = rows[0]
    return tuple(StageProfile(*row) for row in rows.tolist())


def _limit(stages: list[StageProfile], microbatches: int, rng: Rng) -> float:
    """A random memory limit for a rank.

    There is none, or it is enough for one microbatch on all stages of the rank and some more M_B's
    and M_W's, with small deviations up and down; rarely, it is too small.
    """
    if not stages or rng.random() < 0.2:
        return math.inf
    held = sum(stage.m_b for stage in stages)
    for _ in range(rng.integers(microbatches + 1)):
        stage = stages[rng.integers(len(stages))]
        held += stage.m_w if rng.random() < 0.3 else stage.m_b
    edges = [1.0, 1.0, 1 + 1e-12, 1 - 1e-12, 1 - 5e-10, 1 + 5e-10, 1 + 0.5 * rng.uniform(), 0.95]
    return float(held * edges[rng.integers(len(edges))])


def _posed(
    placement: Placement,
    stages: tuple[StageProfile, ...],
    ranks: int,
    rng: Rng,
    *,
    cells: int = CELLS,
    microbatches: int | None = None,
) -> Problem:
    """A problem with random delays, memory limits and objective.

    The number of microbatches is random up to ``cells`` / stages, with a preference for large
    numbers.
    """
    number = microbatches or int(rng.integers(1, cells // len(stages) + 1, 2).max())
    t_comm = float(rng.choice([0.0, 0.3, 1.0, 4.0, rng.uniform(0, 3)]))
    profile = Profile(stages, ranks, t_comm=t_comm, host_link=Link(0.1 * rng.uniform(), 1.0))
    owner = placement.matrix(len(stages), number)
    own = [[stages[s] for s in np.flatnonzero((owner == r).any(axis=1))] for r in range(ranks)]
    limits = tuple(_limit(each, number, rng) for each in own)
    if rng.random() < 0.5:
        limits = (max(limits),) * ranks
    objective = Objective(rng.choice([each.value for each in Objective]))
    if rng.random() < 0.25:  # a different delay for each direction of each pair
        matrix = rng.choice([0.0, 0.3, 4.0], (ranks, ranks)).tolist()
        profile = replace(profile, t_comm=tuple(map(tuple, matrix)))
    return Problem(profile, number, placement, limits, objective)


def _at_once(stages: tuple[StageProfile, ...], rng: Rng) -> tuple[StageProfile, ...]:
    """Let an F and a BW that run at once take the longer time and a part of the shorter one."""
    return tuple(replace(s, t_fb=_longer(s, float(rng.uniform()))) for s in stages)


def _longer(stage: StageProfile, share: float) -> float:
    backward = stage.t_b + stage.t_w
    return max(stage.t_f, backward) + share * min(stage.t_f, backward)


def _fused(stages: tuple[StageProfile, ...], rng: Rng) -> tuple[StageProfile, ...]:
    """Let a BW take less time than B and W."""
    return tuple(replace(s, t_bw=float(rng.uniform(0.5, 1)) * (s.t_b + s.t_w)) for s in stages)


def _few(rng: Rng, least: int, most: int) -> int:
    """A number of stages; ``least`` half of the time, which leaves room for many microbatches."""
    return least if rng.random() < 0.5 else int(rng.integers(least, most + 1))


def _linear(rng: Rng) -> Problem:
    ranks = _few(rng, 2, MOST_RANKS)
    return _posed(Placement.linear(ranks), _stages(ranks, rng), ranks, rng)


def _v(rng: Rng) -> Problem:
    ranks = _few(rng, 1, MOST_RANKS)
    return _posed(Placement.v(ranks), _stages(2 * ranks, rng), ranks, rng)


def _several(rng: Rng) -> Problem:
    """An interleaved placement, a wave, or each stage on a random rank."""
    way, ranks = rng.integers(3), int(rng.integers(2, 4))
    if way == 0:
        return _posed(Placement.interleaved(ranks, 2), _stages(2 * ranks, rng), ranks, rng)
    if way == 1:
        return _posed(Placement.wave(ranks, 2), _stages(4 * ranks, rng), ranks, rng)
    owners = [*range(ranks), *rng.integers(0, ranks, 2).tolist()]
    placement = Placement.of_stages([int(r) for r in rng.permutation(owners)], ranks=ranks)
    return _posed(placement, _stages(len(owners), rng), ranks, rng)


def _pairs(rng: Rng) -> Problem:
    folded = bool(rng.random() < 0.5)
    ranks = _few(rng, 1, 3) if folded else _few(rng, 2, MOST_RANKS)
    placement = Placement.v(ranks) if folded else Placement.linear(ranks)
    stages = _at_once(_stages(ranks * (1 + folded), rng), rng)
    return _posed(placement, stages, ranks, rng)


def _bw(rng: Rng) -> Problem:
    ranks = _few(rng, 1, MOST_RANKS)
    return _posed(Placement.linear(ranks), _fused(_stages(ranks, rng), rng), ranks, rng)


def _copies(rng: Rng) -> Problem:
    """Two copies in opposite directions; half of the problems allow pairs."""
    ranks = int(rng.choice([2, 4, 6]))
    stages = _stages(ranks, rng)
    stages = _at_once(stages, rng) if rng.random() < 0.5 else stages
    return _posed(Placement.bidirectional(ranks), stages, ranks, rng)


_SMALL = (Placement.linear(1), Placement.linear(2), Placement.linear(3), Placement.v(1))
_FOLDED = (Placement.v(2), Placement.interleaved(2, 2))


def _small(rng: Rng) -> tuple[Placement, tuple[StageProfile, ...], int]:
    placement = (*_SMALL, *_SMALL, *_FOLDED)[rng.integers(2 * len(_SMALL) + len(_FOLDED))]
    return placement, _stages(len(placement.owners), rng), 1 + max(placement.owners)


def _recomputed(rng: Rng) -> Problem:
    placement, stages, ranks = _small(rng)
    return _posed(placement, _with_recomputation(stages, rng), ranks, rng, cells=FEW_CELLS)


def _offloaded(rng: Rng) -> Problem:
    """Some of these problems also allow recomputation."""
    placement, stages, ranks = _small(rng)
    stages = _with_recomputation(stages, rng) if rng.random() < 0.4 else stages
    stages = tuple(
        replace(s, m_o=float(rng.choice([0.0, 0.3])) * s.m_b, offload_bytes=rng.uniform(0, 4e6))
        for s in stages
    )
    return _posed(placement, stages, ranks, rng, cells=FEW_CELLS)


def _with_recomputation(stages: tuple[StageProfile, ...], rng: Rng) -> tuple[StageProfile, ...]:
    return tuple(
        replace(s, t_r=float(rng.uniform(0, 1.2)) * s.t_f, m_r=float(rng.uniform(0, 1)) * s.m_b)
        for s in stages
    )


def _unlike(rng: Rng) -> Problem:
    placement, stages, ranks = _small(rng)
    number = int(rng.integers(1, FEW_CELLS // len(stages) + 1))
    each = [_stages(len(stages), rng) for _ in range(number)]
    stages = tuple(StageProfile.of(of) for of in zip(*each, strict=True))
    return _posed(placement, stages, ranks, rng, microbatches=number)


_STREAMED = ((2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2))
"""Ranks and stages for which the oracle tries all transfers within moments."""


def _weights(rng: Rng) -> Problem:
    """Only with the makespan, since the span of a rank can begin after all weights have arrived."""
    ranks, number = _STREAMED[rng.integers(len(_STREAMED))]
    microbatches = int(rng.integers(ranks, CELLS // number + 1))
    sizes = rng.uniform(0, 4e6, number).tolist()
    stages = tuple(
        replace(s, weight_bytes=size) for s, size in zip(_stages(number, rng), sizes, strict=True)
    )
    one_wire = (((0, 1), (1, 0)),)
    shared = (*Sharing, one_wire)[rng.integers(len(Sharing) + 1)]
    links = Links(Link(float(rng.choice([0.0, 0.1, 1.0])), 1.0), shared=shared)
    limit = _limit(list(stages), -(-microbatches // ranks) * number, rng)
    placement = Placement.round_robin(ranks)
    profile = Profile(stages, ranks, links=links, shared_by=1)
    return Problem(profile, microbatches, placement, (limit,) * ranks, Objective.MAKESPAN)


def _magnitudes(rng: Rng) -> Problem:
    """Up to 8 ranks and 12 microbatches, with times and sizes of all magnitudes, or many zeros."""
    ranks, way = int(rng.integers(1, 9)), rng.integers(4)
    rows = np.hstack([_times(ranks, rng), _sizes(ranks, rng)])
    if way == 0:
        rows[:, :3] = 10.0 ** rng.uniform(-6, 6, (ranks, 3))
    elif way == 1:  # one or two of T_F, T_B, T_W are 0 on all stages
        rows[:, rng.choice(3, rng.integers(1, 3), replace=False)] = 0.0
    elif way == 2:  # some stages take no time, or all of them
        rows[rng.random(ranks) < rng.choice([0.5, 1.0]), :3] = 0.0
    if rng.random() < 0.5:
        rows[:, 3:] *= 10.0 ** rng.uniform(-6, 12, (ranks, 1)) * rng.integers(0, 2, (ranks, 1))
    stages = tuple(StageProfile(*row) for row in rows.tolist())
    microbatches = int(rng.integers(1, 13))
    return _posed(Placement.linear(ranks), stages, ranks, rng, microbatches=microbatches)


KINDS: dict[str, Callable[[Rng], Problem]] = {
    "linear": _linear,
    "v": _v,
    "several stages a rank": _several,
    "pairs": _pairs,
    "bw": _bw,
    "two copies": _copies,
    "recomputation": _recomputed,
    "offload": _offloaded,
    "unlike": _unlike,
    "weights": _weights,
    "magnitudes": _magnitudes,
}
