"""Problems with one stage a rank whose stages or links differ; the seed decides all."""

from __future__ import annotations

import numpy as np

from pipeloom import Objective, Problem, Profile, StageProfile

T_F, T_B, T_W, M_B, M_W, T_COMM = 29.718, 29.444, 19.927, 1.0, 0.432, 0.527


def unequal(seed: int, objective: Objective = Objective.PERIOD, most_ranks: int = 16) -> Problem:
    """By turns: times differ, times and memory, the ends are heavy, nodes are apart, any link."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, most_ranks + 1))
    factors, sizes, delays = np.ones((ranks, 3)), np.ones(ranks), np.full((ranks, ranks), T_COMM)
    if seed % 5 == 0:
        factors = rng.uniform(0.8, 1.2, (ranks, 3))
    elif seed % 5 == 1:
        factors, sizes = rng.uniform(0.8, 1.2, (ranks, 1)), rng.uniform(0.9, 1.1, ranks)
    elif seed % 5 == 2:
        factors[[0, -1]] = rng.uniform(1.1, 1.5, (2, 1))
    elif seed % 5 == 3:
        near = np.arange(ranks) < ranks // 2
        delays[near[:, None] != near] = T_F * rng.uniform(0.2, 1.0)
    else:
        delays = rng.uniform(0.0, 0.3 * T_F, (ranks, ranks))
    times = (factors * (T_F, T_B, T_W)).tolist()
    rows = zip(times, (sizes * M_B).tolist(), (sizes * M_W).tolist(), strict=True)
    stages = tuple(StageProfile(*time, m_b, m_w) for time, m_b, m_w in rows)
    profile = Profile(stages, ranks, tuple(map(tuple, delays.tolist())))
    microbatches = round(4 * 24 ** rng.uniform())
    share = float(rng.choice((1.0, 1.25, 1.5, 2.0)))
    return Problem.linear(profile, microbatches, max(1.1, share * ranks * M_B), objective)
