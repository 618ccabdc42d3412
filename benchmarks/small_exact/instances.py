"""Random problems of at most twelve (stage, microbatch) pairs, by kind; the seed decides all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Link, Links, Profile, Sharing, StageProfile

CELLS = 12
MOST_RANKS = 6

Rng = np.random.Generator
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def problem_of(kind: str, seed: int) -> Problem:
    """The problem of a kind, one of :data:`KINDS`, and a seed."""
    return KINDS[kind](np.random.default_rng([11, seed]))


def _times(stages: int, rng: Rng) -> Numbers:
    """T_F, T_B, T_W of each stage: small whole numbers, equal but for a fifth, or any."""
    way = rng.integers(3)
    if way == 0:
        return rng.integers(0, 5, (stages, 3)).astype(np.float64)
    if way == 1:
        return np.asarray(rng.uniform(1, 10, 3) * rng.uniform(0.8, 1.2, (stages, 3)))
    return rng.uniform(0.5, 10, (stages, 3))


def _posed(placement: Placement, stages: tuple[StageProfile, ...], ranks: int, rng: Rng) -> Problem:
    """With any delay, memory limit and objective, and as many microbatches as there is room for."""
    microbatches = int(rng.integers(1, CELLS // len(stages) + 1))
    profile = Profile(stages, ranks, t_comm=float(rng.choice([0.0, 0.3, 1.0, 4.0])))
    chunks = len(stages) / ranks
    limit = float(rng.choice([np.inf, rng.uniform(chunks, len(stages) + 1)]))
    objective = Objective(rng.choice([each.value for each in Objective]))
    return Problem(profile, microbatches, placement, (limit,) * ranks, objective)


def _stages(number: int, rng: Rng) -> tuple[StageProfile, ...]:
    share = rng.uniform(0, 1, number).tolist()
    rows = zip(_times(number, rng).tolist(), share, strict=True)
    return tuple(StageProfile(f, b, w, 1.0, m_w) for (f, b, w), m_w in rows)


def _at_once(stages: tuple[StageProfile, ...], rng: Rng) -> tuple[StageProfile, ...]:
    """An F and a BW at once take the longer of the two and some of the shorter."""
    return tuple(
        StageProfile(s.t_f, s.t_b, s.t_w, s.m_b, s.m_w, t_fb=_longer(s, float(rng.uniform())))
        for s in stages
    )


def _longer(stage: StageProfile, share: float) -> float:
    backward = stage.t_b + stage.t_w
    return max(stage.t_f, backward) + share * min(stage.t_f, backward)


def _fused(stages: tuple[StageProfile, ...], rng: Rng) -> tuple[StageProfile, ...]:
    """A BW takes less than its B and W."""
    return tuple(
        StageProfile(
            s.t_f, s.t_b, s.t_w, s.m_b, s.m_w, t_bw=float(rng.uniform(0.5, 1)) * (s.t_b + s.t_w)
        )
        for s in stages
    )


def _linear(rng: Rng) -> Problem:
    ranks = int(rng.integers(2, MOST_RANKS + 1))
    return _posed(Placement.linear(ranks), _stages(ranks, rng), ranks, rng)


def _v(rng: Rng) -> Problem:
    ranks = int(rng.integers(2, MOST_RANKS + 1))
    return _posed(Placement.v(ranks), _stages(2 * ranks, rng), ranks, rng)


def _several(rng: Rng) -> Problem:
    """Interleaved, a wave, or each stage on any rank."""
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
    ranks = int(rng.integers(1, 4 if folded else MOST_RANKS))
    placement = Placement.v(ranks) if folded else Placement.linear(ranks)
    stages = _at_once(_stages(ranks * (1 + folded), rng), rng)
    return _posed(placement, stages, ranks, rng)


def _bw(rng: Rng) -> Problem:
    ranks = int(rng.integers(1, MOST_RANKS))
    return _posed(Placement.linear(ranks), _fused(_stages(ranks, rng), rng), ranks, rng)


def _copies(rng: Rng) -> Problem:
    """Both ways, half of them with pairs."""
    ranks = int(rng.choice([2, 4, 6]))
    stages = _stages(ranks, rng)
    stages = _at_once(stages, rng) if rng.random() < 0.5 else stages
    return _posed(Placement.bidirectional(ranks), stages, ranks, rng)


_STREAMED = ((2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2))
"""Ranks and stages of which the oracle tries all transfers in moments."""


def _weights(rng: Rng) -> Problem:
    """The makespan alone: a rank's span can begin once all weights are there."""
    ranks, number = _STREAMED[rng.integers(len(_STREAMED))]
    microbatches = int(rng.integers(ranks, CELLS // number + 1))
    sizes = rng.uniform(0, 4e6, number).tolist()
    stages = tuple(
        StageProfile(s.t_f, s.t_b, s.t_w, s.m_b, s.m_w, weight_bytes=size)
        for s, size in zip(_stages(number, rng), sizes, strict=True)
    )
    one_wire = (((0, 1), (1, 0)),)
    shared = (*Sharing, one_wire)[rng.integers(len(Sharing) + 1)]
    links = Links(Link(float(rng.choice([0.0, 0.1, 1.0])), 1.0), shared=shared)
    limit = float(rng.choice([np.inf, 1.0, 1.5, 2.0])) * number
    placement = Placement.round_robin(ranks)
    profile = Profile(stages, ranks, links=links)
    return Problem(profile, microbatches, placement, (limit,) * ranks, Objective.MAKESPAN)


KINDS: dict[str, Callable[[Rng], Problem]] = {
    "linear": _linear,
    "v": _v,
    "several stages a rank": _several,
    "pairs": _pairs,
    "bw": _bw,
    "two copies": _copies,
    "weights": _weights,
}
