"""Seeded instances of every shape that a profile may have, the odd ones as likely as the plain.

Each instance draws one way for its times, one for its delays, one for its memory and one for its
limits, from the tables below, and then an objective; the seed decides all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeloom.ir import Link, Links, Objective, Problem, Profile, StageProfile

MOST_RANKS, MOST_MICROBATCHES = 8, 12
TINY = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3), (4, 1))
"""Shapes (P, M) that the exhaustive oracle searches in moments."""
TINY_EVERY = 4
"""Of the seeds, how many make a tiny instance: each fourth."""
ROUNDING = 1e-9
"""What a memory limit gives way, relative: sums of sizes are rounded."""

Rng = np.random.Generator
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem and how it was drawn; ``words`` name the ways."""

    seed: int
    words: tuple[str, ...]
    tiny: bool
    problem: Problem

    @property
    def feasible(self) -> bool:
        """Whether one microbatch at a time fits on every rank."""
        pairs = zip(self.problem.profile.stages, self.problem.memory_limit, strict=True)
        return all(stage.m_b <= limit * (1 + ROUNDING) for stage, limit in pairs)

    def __str__(self) -> str:
        shape = f"P={self.problem.ranks} M={self.problem.microbatches}"
        return f"seed {self.seed} ({shape}, {', '.join(self.words)})"


def random_instance(seed: int) -> Instance:
    """The instance of ``seed``, one stage a rank; its limits are those of its profile."""
    rng = np.random.default_rng([3, seed])
    tiny = seed % TINY_EVERY == 0
    ranks, microbatches = _shape(tiny, rng)
    names = [str(rng.choice(list(table))) for table in (TIMES, DELAYS, MEMORY, LIMITS)]
    times, delays, memory, limits = names
    t = TIMES[times](ranks, rng)
    m = MEMORY[memory](ranks, rng)
    stages = tuple(StageProfile(*row) for row in np.hstack([t, m]).tolist())
    bare = Profile(stages, ranks, name=f"random-{seed}")
    profile = DELAYS[delays](bare, rng)
    limit = LIMITS[limits](stages, microbatches, rng)
    objective = Objective(rng.choice([each.value for each in Objective]))
    problem = Problem.linear(_limited(profile, limit), microbatches, None, objective)
    return Instance(seed, (*names, objective.value), tiny, problem)


def _shape(tiny: bool, rng: Rng) -> tuple[int, int]:
    if tiny:
        ranks, microbatches = TINY[rng.integers(len(TINY))]
        return ranks, microbatches
    return int(rng.integers(1, MOST_RANKS + 1)), int(rng.integers(1, MOST_MICROBATCHES + 1))


def _limited(profile: Profile, limit: tuple[float, ...] | None) -> Profile:
    stages, delays, links = profile.stages, profile.t_comm, profile.links
    return Profile(stages, profile.ranks, delays, links, limit, name=profile.name)


# T_F, T_B, T_W of each stage, (P, 3)


def _equal(ranks: int, rng: Rng) -> Numbers:
    return np.tile(rng.uniform(1.0, 40.0, 3), (ranks, 1))


def _unequal(ranks: int, rng: Rng) -> Numbers:
    return _equal(ranks, rng) * rng.uniform(0.8, 1.2, (ranks, 3))


def _heavy_ends(ranks: int, rng: Rng) -> Numbers:
    times = _equal(ranks, rng)
    times[[0, -1]] *= rng.uniform(1.0, 4.0)
    return times


def _whole(ranks: int, rng: Rng) -> Numbers:
    """Small whole numbers: many ties, many zeros."""
    return rng.integers(0, 4, (ranks, 3)).astype(np.float64)


def _without(ranks: int, rng: Rng) -> Numbers:
    """One or two of T_F, T_B, T_W are 0 on all stages."""
    times = _unequal(ranks, rng)
    times[:, rng.choice(3, rng.integers(1, 3), replace=False)] = 0.0
    return times


def _idle_stages(ranks: int, rng: Rng) -> Numbers:
    """About half of the stages take no time at all; all of them at times."""
    times = _unequal(ranks, rng)
    times[rng.random(ranks) < rng.choice([0.5, 1.0])] = 0.0
    return times


def _scaled(ranks: int, rng: Rng) -> Numbers:
    """Times all in one unit from 1e-6 to 1e6."""
    return np.asarray(_unequal(ranks, rng) * 10.0 ** rng.uniform(-7, 5))


def _apart(ranks: int, rng: Rng) -> Numbers:
    """Each time of a magnitude of its own, from 1e-6 to 1e6."""
    return np.asarray(10.0 ** rng.uniform(-6, 6, (ranks, 3)))


TIMES: dict[str, Callable[[int, Rng], Numbers]] = {
    "equal": _equal,
    "unequal": _unequal,
    "heavy-ends": _heavy_ends,
    "whole": _whole,
    "without": _without,
    "idle-stages": _idle_stages,
    "scaled": _scaled,
    "apart": _apart,
}


# t_comm, or links with the bytes that are sent


def _of(profile: Profile, t_comm: float | Numbers | None) -> Profile:
    rows = tuple(map(tuple, t_comm.tolist())) if isinstance(t_comm, np.ndarray) else t_comm
    return Profile(profile.stages, profile.ranks, rows, name=profile.name)


def _longest(profile: Profile) -> float:
    """The longest op; 1 where none takes time."""
    return max(max(s.t_f, s.t_b, s.t_w) for s in profile.stages) or 1.0


def _matrix(profile: Profile, rng: Rng) -> Numbers:
    """Each direction of each pair has a delay of its own."""
    shape = (profile.ranks, profile.ranks)
    return np.asarray(rng.uniform(0.0, _longest(profile), shape))


def _some_zero(profile: Profile, rng: Rng) -> Numbers:
    return np.where(rng.random((profile.ranks, profile.ranks)) < 0.5, 0.0, _matrix(profile, rng))


def _one_way(profile: Profile, rng: Rng) -> Numbers:
    """Gradients arrive at once, activations hardly, or the other way round."""
    slow = np.triu(np.full((profile.ranks, profile.ranks), 30 * _longest(profile)))
    return slow if rng.random() < 0.5 else slow.T.copy()


def _links(profile: Profile, rng: Rng) -> Profile:
    """Bytes over links, one pair of which is slow; some stages do not say what they send."""
    known = rng.random(profile.ranks) < 0.8
    stages = tuple(
        StageProfile(s.t_f, s.t_b, s.t_w, s.m_b, s.m_w, 1e6 if knows else None)
        for s, knows in zip(profile.stages, known.tolist(), strict=True)
    )
    speed = 1.0 / _longest(profile)
    pairs: tuple[tuple[int, int, Link], ...] = ()
    if profile.ranks > 1:
        pairs = ((int(rng.integers(1, profile.ranks)), 0, Link(0.0, speed / 10)),)
    links = Links(Link(_longest(profile) / 100, speed), pairs)
    return Profile(stages, profile.ranks, None, links, name=profile.name)


DELAYS: dict[str, Callable[[Profile, Rng], Profile]] = {
    "no delays": lambda profile, rng: _of(profile, None),
    "zero delay": lambda profile, rng: _of(profile, 0.0),
    "short delay": lambda profile, rng: _of(profile, rng.uniform(0, 0.2) * _longest(profile)),
    "delay of an op": lambda profile, rng: _of(profile, _longest(profile)),
    "huge delay": lambda profile, rng: _of(profile, 10 ** rng.uniform(1, 4) * _longest(profile)),
    "matrix": lambda profile, rng: _of(profile, _matrix(profile, rng)),
    "matrix with zeros": lambda profile, rng: _of(profile, _some_zero(profile, rng)),
    "one way slow": lambda profile, rng: _of(profile, _one_way(profile, rng)),
    "links": _links,
}


# M_B and M_W of each stage, (P, 2)


def _memory(m_b: Numbers, share: Numbers | float) -> Numbers:
    return np.column_stack([m_b, m_b * share])


def _uneven(ranks: int, rng: Rng) -> Numbers:
    return np.asarray(rng.uniform(0.9, 1.1, ranks))


def _some_none(ranks: int, rng: Rng) -> Numbers:
    """Some stages hold nothing, all of them at times."""
    return np.where(rng.random(ranks) < rng.choice([0.3, 1.0]), 0.0, _uneven(ranks, rng))


MEMORY: dict[str, Callable[[int, Rng], Numbers]] = {
    "as published": lambda ranks, rng: _memory(np.ones(ranks), 0.432),
    "M_W = 0": lambda ranks, rng: _memory(_uneven(ranks, rng), 0.0),
    "M_W = M_B": lambda ranks, rng: _memory(_uneven(ranks, rng), 1.0),
    "some M_B = 0": lambda ranks, rng: _memory(_some_none(ranks, rng), rng.uniform(0, 1, ranks)),
    "tenths": lambda ranks, rng: _memory(np.full(ranks, 0.1), 0.3),
    "bytes": lambda ranks, rng: np.floor(_memory(2e9 * _uneven(ranks, rng), rng.uniform(0, 1))),
    "magnitudes": lambda ranks, rng: _memory(10 ** rng.uniform(-6, 12, ranks), 0.5),
}


# memory limits, one a rank; None is no limit

Stages = tuple[StageProfile, ...]


def _m_b(stages: Stages) -> Numbers:
    return np.array([stage.m_b for stage in stages])


def _counts(stages: Stages, rng: Rng) -> Numbers:
    """Limits of one number of microbatches, not a whole one, on every rank."""
    return _m_b(stages) * rng.uniform(1.0, 2.5 * len(stages))


def _few(stages: Stages, rng: Rng) -> Numbers:
    """Limits below P x M_B."""
    return _m_b(stages) * rng.uniform(1.0, max(1.0, 0.75 * len(stages)), len(stages))


def _edge(stages: Stages, rng: Rng) -> Numbers:
    """Limits that some microbatches fill, summed one by one, or a hair less: equal but for
    rounding."""
    limits = []
    for stage in stages:
        whole, partial = int(rng.integers(1, 6)), int(rng.integers(0, 4))
        held = math.fsum([stage.m_b] * whole + [stage.m_w] * partial)
        if rng.random() < 0.5:
            held = sum([stage.m_b] * whole + [stage.m_w] * partial)
        limits.append(held * (1 - rng.choice([0.0, 1e-16, 3e-16, 1e-12, 5e-10])))
    return np.array(limits)


def _mixed(stages: Stages, rng: Rng) -> Numbers:
    """Limits of their own for each rank, some without."""
    limits = _m_b(stages) * rng.uniform(1.0, 2.0 * len(stages), len(stages))
    return np.where(rng.random(len(stages)) < 0.3, math.inf, limits)


def _too_small(stages: Stages, rng: Rng) -> Numbers:
    """Less than one microbatch holds, on one rank."""
    limits = _few(stages, rng)
    rank = rng.integers(len(stages))
    limits[rank] = stages[rank].m_b * rng.choice([0.0, 0.5, 1 - 1e-6])
    return limits


def _tuple(limits: Numbers) -> tuple[float, ...]:
    return tuple(limits.tolist())


LIMITS: dict[str, Callable[[Stages, int, Rng], tuple[float, ...] | None]] = {
    "no limit": lambda stages, count, rng: None,
    "one microbatch": lambda stages, count, rng: _tuple(_m_b(stages)),
    "some microbatches": lambda stages, count, rng: _tuple(_counts(stages, rng)),
    "few microbatches": lambda stages, count, rng: _tuple(_few(stages, rng)),
    "all microbatches": lambda stages, count, rng: _tuple(count * _m_b(stages)),
    "edge of rounding": lambda stages, count, rng: _tuple(_edge(stages, rng)),
    "a limit a rank": lambda stages, count, rng: _tuple(_mixed(stages, rng)),
    "too small": lambda stages, count, rng: _tuple(_too_small(stages, rng)),
}
