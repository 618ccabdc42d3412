"""Instances by kind; kind, number and seed decide all. Even numbers have equal stages, odd ones
times that are up to a fifth more or less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeloom import Objective, Placement, Problem, Profile, StageProfile
from pipeloom.ir import Link, Links, Sharing

RANKS = (4, 4, 6, 6, 8, 8, 8, 12, 16, 16)
SHARES = (0.4, 0.5, 0.75, 0.5, 0.4, 0.6, 1.0, 0.75, 0.5, 1.0)
"""Memory of each instance of a kind, in units of P x M_B of the average rank."""
TIGHT = (0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.3, 0.4, 0.5, 0.6)
SPREAD = 0.2
GB = 1e9

Rng = np.random.Generator


def problem_of(kind: str, number: int, seed: int) -> Problem:
    """Instance ``number`` of ``kind``, one of :data:`KINDS`."""
    return KINDS[kind](number, np.random.default_rng([list(KINDS).index(kind), number, seed]))


def _stages(number: int, count: int, rng: Rng, **sizes: Any) -> tuple[StageProfile, ...]:
    """T_F of about 10, T_B and T_W in the proportions of measured transformers."""
    base = 10 * np.array([1.0, rng.uniform(0.9, 1.2), rng.uniform(0.6, 1.0)])
    around = SPREAD if number % 2 else 0.0
    times = base * rng.uniform(1 - around, 1 + around, (count, 3))
    m_w = float(rng.uniform(0.3, 0.5))
    return tuple(StageProfile(f, b, w, 1.0, m_w, **sizes) for f, b, w in times.tolist())


def _placed(  # noqa: PLR0917
    number: int,
    rng: Rng,
    placement: Placement,
    chunks: int = 1,
    shares: tuple[float, ...] = SHARES,
    objective: Objective = Objective.PERIOD,
) -> Problem:
    """``chunks`` stages a rank, each M_B of 1; three times as many microbatches as ranks."""
    ranks = RANKS[number]
    stages = _stages(number, ranks * chunks, rng)
    limit = max(shares[number] * ranks * chunks, chunks * 1.0)
    profile = Profile(stages, ranks, t_comm=float(rng.uniform(0.0, 1.0)))
    return Problem(profile, 3 * ranks, placement, (limit,) * ranks, objective)


def _v(number: int, rng: Rng) -> Problem:
    return _placed(number, rng, Placement.v(RANKS[number]), 2)


def _wave(number: int, rng: Rng) -> Problem:
    return _placed(number, rng, Placement.wave(RANKS[number], 2), 4)


def _interleaved(number: int, rng: Rng) -> Problem:
    return _placed(number, rng, Placement.interleaved(RANKS[number], 2), 2)


def _copies(number: int, rng: Rng) -> Problem:
    """Two stages a rank, one of each copy."""
    shares = tuple(share + 0.25 for share in SHARES)
    return _placed(number, rng, Placement.bidirectional(RANKS[number]), shares=shares)


def _little(number: int, rng: Rng) -> Problem:
    """One stage a rank and less than P x M_B, never equal."""
    stages = _stages(1, RANKS[number], rng)
    limit = max(1.0, TIGHT[number] * RANKS[number])
    profile = Profile(stages, RANKS[number], t_comm=float(rng.uniform(0.0, 1.0)))
    return Problem.linear(profile, 3 * RANKS[number], limit)


def _makespan(number: int, rng: Rng) -> Problem:
    """V and two chunks in turn by turns, with an optimizer barrier."""
    ranks = RANKS[number]
    placement = Placement.v(ranks) if number % 4 < 2 else Placement.interleaved(ranks, 2)
    return _placed(number, rng, placement, 2, objective=Objective.MAKESPAN)


def _relieved(number: int, rng: Rng, limit: float, **how: Any) -> Problem:
    """One stage a rank with M_B of 1 GB and a way to hold less of it."""
    ranks = RANKS[number]
    stages = tuple(
        StageProfile(s.t_f, s.t_b, s.t_w, GB, s.m_w * GB, **{**how, **_again(s, how)})
        for s in _stages(number, ranks, rng)
    )
    rate = 2.0 * GB / 10 / 1e6  # gigabytes a second: M_B in half of an F
    link = Link(0.0, rate) if "m_o" in how else None
    profile = Profile(stages, ranks, float(rng.uniform(0.0, 1.0)), host_link=link)
    return Problem.linear(profile, 3 * ranks, limit * ranks * GB)


def _again(stage: StageProfile, how: dict[str, Any]) -> dict[str, float]:
    return {"t_r": 0.9 * stage.t_f} if "m_r" in how else {}


def _remat(number: int, rng: Rng) -> Problem:
    return _relieved(number, rng, TIGHT[number], m_r=0.02 * GB)


def _offload(number: int, rng: Rng) -> Problem:
    return _relieved(number, rng, TIGHT[number], m_o=0.02 * GB)


def _weights(number: int, rng: Rng) -> Problem:
    """Streamed weights whose messages share wires, a hop of a tenth to half of an F."""
    ranks, size = RANKS[number], 1e6
    stages = _stages(number, ranks, rng, weight_bytes=size)
    hop = float(rng.uniform(0.1, 0.5)) * 10
    sharing = tuple(Sharing)[number % len(Sharing)]
    links = Links(Link(0.0, size / (hop * 1e6)), shared=sharing)
    limit = float(rng.choice([1.0, 1.5, 2.0])) * ranks
    profile = Profile(stages, ranks, links=links)
    placement = Placement.round_robin(ranks)
    return Problem(profile, 2 * ranks, placement, (limit,) * ranks, Objective.MAKESPAN)


KINDS: dict[str, Callable[[int, Rng], Problem]] = {
    "v": _v,
    "wave": _wave,
    "interleaved": _interleaved,
    "two copies": _copies,
    "remat": _remat,
    "offload": _offload,
    "little memory": _little,
    "makespan": _makespan,
    "weights": _weights,
}
