"""Problems of realistic size, by kind: 4 to 16 ranks, with three times as many microbatches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeloom import Objective, Placement, Problem, Profile, StageProfile
from pipeloom.ir import Link

KINDS = ("v", "", "interleaved", "two copies", "remat", "offload", "little memory", "makespan")
RANKS = (4, 4, 6, 6, 8, 8, 8, 12, 16, 16)
SHARES = np.array((0.4, 0.5, 0.75, 0.5, 0.4, 0.6, 1.0, 0.75, 0.5, 1.0))
TIGHT = (0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.3, 0.4, 0.5, 0.6)
GB = 1e9


def large_problem(kind: str, number: int) -> Problem:
    """Instance ``number``, 0 to 9, of a kind in :data:`KINDS`; even numbers have equal stages."""
    rng = np.random.default_rng([KINDS.index(kind), number, 17])
    ranks = RANKS[number]
    chunks = 2 if kind in {"v", "interleaved", "makespan"} else 1
    unequal = number % 2 or kind == "little memory"
    base = 10 * np.array([1.0, rng.uniform(0.9, 1.2), rng.uniform(0.6, 1.0)])
    times = base * rng.uniform(1 - 0.2 * unequal, 1 + 0.2 * unequal, (ranks * chunks, 3))
    m_w = float(rng.uniform(0.3, 0.5))
    stages = tuple(StageProfile(f, b, w, 1.0, m_w) for f, b, w in times.tolist())
    t_comm = float(rng.uniform(0.0, 1.0))
    if kind in {"remat", "offload"}:
        return _with_levers(kind, stages, t_comm, TIGHT[number])
    share = SHARES[number] + 0.25 * (kind == "two copies")
    share = TIGHT[number] if kind == "little memory" else share
    limit = max(float(share) * ranks, 1.0) * chunks
    in_a_v = kind == "v" or (kind == "makespan" and number % 4 < 2)
    placement = Placement.v(ranks) if in_a_v else Placement.interleaved(ranks, chunks)
    placement = Placement.bidirectional(ranks) if kind == "two copies" else placement
    objective = Objective.MAKESPAN if kind == "makespan" else Objective.PERIOD
    profile = Profile(stages, ranks, t_comm)
    return Problem(profile, 3 * ranks, placement, (limit,) * ranks, objective)


def _with_levers(
    kind: str, stages: tuple[StageProfile, ...], t_comm: float, limit: float
) -> Problem:
    """M_B is 1 GB; its copy takes half as long as an F, or an R takes 0.9 of an F."""
    whole = [replace(s, m_b=GB, m_w=s.m_w * GB) for s in stages]
    if kind == "remat":
        stages = tuple(replace(s, t_r=0.9 * s.t_f, m_r=0.02 * GB) for s in whole)
    else:
        stages = tuple(replace(s, m_o=0.02 * GB) for s in whole)
    link = Link(0.0, 2.0 * GB / 10 / 1e6) if kind == "offload" else None
    profile = Profile(stages, len(stages), t_comm, host_link=link)
    return Problem.linear(profile, 3 * len(stages), limit * len(stages) * GB)
