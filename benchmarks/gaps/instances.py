"""Random problems by kind, reproducible from kind, number and seed.

Problems with an even number have equal stages. In the others, times deviate by up to 20 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipeloom.ir import Link, Links, Objective, Placement, Problem, Profile, Sharing, StageProfile

RANKS = (4, 4, 6, 6, 8, 8, 8, 12, 16, 16)
SHARES = (0.4, 0.5, 0.75, 0.5, 0.4, 0.6, 1.0, 0.75, 0.5, 1.0)
"""The memory limits of the ten problems of a kind, in units of P x M_B of an average rank."""
TIGHT = (0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.3, 0.4, 0.5, 0.6)
SPREAD = 0.2
GB = 1e9

Rng = np.random.Generator
Placed = tuple[Callable[[int], Placement], int]
"""A function from the number of ranks to a placement, and the number of stages per rank."""
V: Placed = (Placement.v, 2)
INTERLEAVED: Placed = (lambda ranks: Placement.interleaved(ranks, 2), 2)
PLACED: Mapping[str, Placed] = {
    "v": V,
    "wave": (lambda ranks: Placement.wave(ranks, 2), 4),
    "interleaved": INTERLEAVED,
    "two copies": (Placement.bidirectional, 1),
}
RELIEVED = {"remat": "m_r", "offload": "m_o"}
KINDS = (*PLACED, *RELIEVED, "little memory", "makespan", "weights")


def problem_of(kind: str, number: int, seed: int) -> Problem:
    """The problem of ``kind`` with the given number, 0 to 9.

    It has three microbatches per rank, or two if weights are passed.
    """
    rng = np.random.default_rng([KINDS.index(kind), number, seed])
    if kind in RELIEVED:
        return _relieved(number, rng, RELIEVED[kind])
    if kind == "weights":
        return _weights(number, rng)
    if kind == "little memory":  # one stage per rank, less than P x M_B, stages always differ
        return _placed(number, rng, (Placement.linear, 1), TIGHT[number], spread=SPREAD)
    if kind == "makespan":  # V and interleaved placements alternate
        by_turns = V if number % 4 < 2 else INTERLEAVED
        return _placed(number, rng, by_turns, SHARES[number], objective=Objective.MAKESPAN)
    more = 0.25 if kind == "two copies" else 0.0  # two stages per rank, one of each copy
    return _placed(number, rng, PLACED[kind], SHARES[number] + more)


def _stages(
    count: int, number: int, rng: Rng, spread: float | None = None, **sizes: Any
) -> tuple[StageProfile, ...]:
    """Stages with a T_F of about 10 ms, and with T_B and T_W in proportions measured on
    transformers.

    ``spread``: the maximum relative deviation of times, by default ``SPREAD`` for odd numbers and 0
    for even ones. ``sizes``: further fields of each stage.
    """
    spread = SPREAD * (number % 2) if spread is None else spread
    base = 10 * np.array([1.0, rng.uniform(0.9, 1.2), rng.uniform(0.6, 1.0)])
    times = base * rng.uniform(1 - spread, 1 + spread, (count, 3))
    m_w = float(rng.uniform(0.3, 0.5))
    return tuple(StageProfile(f, b, w, 1.0, m_w, **sizes) for f, b, w in times.tolist())


def _placed(
    number: int,
    rng: Rng,
    placed: Placed,
    share: float,
    *,
    objective: Objective = Objective.PERIOD,
    spread: float | None = None,
) -> Problem:
    """A problem with M_B = 1 and a memory limit of at least one microbatch.

    ``number``: the number of the problem, 0 to 9. ``placed``: its placement, and the stages per
    rank. ``share``: the memory limit in units of P x M_B of a rank. ``spread``: as in
    :func:`_stages`.
    """
    (place, chunks), ranks = placed, RANKS[number]
    stages = _stages(ranks * chunks, number, rng, spread)
    limit = max(share * ranks * chunks, chunks * 1.0)
    profile = Profile(stages, ranks, t_comm=float(rng.uniform(0.0, 1.0)))
    return Problem(profile, 3 * ranks, place(ranks), (limit,) * ranks, objective)


def _relieved(number: int, rng: Rng, key: str) -> Problem:
    """A problem with one stage per rank and M_B = 1 GB; recomputation or offload leaves 2 % of it.

    ``key``: ``m_r`` (recomputation) or ``m_o`` (offload).
    """
    ranks, again = RANKS[number], 0.9 if key == "m_r" else None
    relieved: dict[str, Any] = {key: 0.02 * GB}
    stages = tuple(
        replace(s, m_b=GB, m_w=s.m_w * GB, **relieved, t_r=again and again * s.t_f)
        for s in _stages(ranks, number, rng)
    )
    rate = 2.0 * GB / 10 / 1e6  # gigabytes per second: M_B is copied in half the time of an F
    link = Link(0.0, rate) if key == "m_o" else None
    profile = Profile(stages, ranks, float(rng.uniform(0.0, 1.0)), host_link=link)
    return Problem.linear(profile, 3 * ranks, TIGHT[number] * ranks * GB)


def _weights(number: int, rng: Rng) -> Problem:
    """A problem with weight passing over links that share wires, and two microbatches per rank.

    To transfer the weights of a stage over one hop takes 0.1 to 0.5 times as long as an F.
    """
    ranks, size = RANKS[number], 1e6
    stages = _stages(ranks, number, rng, weight_bytes=size)
    hop = float(rng.uniform(0.1, 0.5)) * 10
    sharing = tuple(Sharing)[number % len(Sharing)]
    links = Links(Link(0.0, size / (hop * 1e6)), shared=sharing)
    limit = float(rng.choice([1.0, 1.5, 2.0])) * ranks
    profile = Profile(stages, ranks, links=links)
    placement = Placement.round_robin(ranks)
    return Problem(profile, 2 * ranks, placement, (limit,) * ranks, Objective.MAKESPAN)
