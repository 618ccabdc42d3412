"""Random pipelines with unequal stages or links, derived from the times of the 6.2B profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pipeloom import Objective, Problem, Profile, StageProfile
from pipeloom.solver import smallest_limit

T_F, T_B, T_W, M_B, M_W, T_COMM = 29.718, 29.444, 19.927, 1.0, 0.432, 0.527
SHARES = (1.0, 1.25, 1.5, 2.0)
"""Memory limits in units of P x M_B."""
ODD_SHARES = (0.3, 0.45, 0.6, 0.7, 0.85, 0.95, 1.1, 1.37, 1.8)
"""Memory limits below P x M_B, and limits between its multiples, in units of P x M_B."""

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Kind = Callable[[int, np.random.Generator], tuple[tuple[StageProfile, ...], float | Numbers]]


def _stages(times: Numbers, memory: Numbers) -> tuple[StageProfile, ...]:
    """One stage per rank, derived from the constants above. ``times``: factors on T_F, T_B and T_W,
    (P, 3). ``memory``: factors on M_B and M_W, (P,)."""
    stages = []
    for factors, size in zip(times, memory.tolist(), strict=True):
        t_f, t_b, t_w = np.round((T_F, T_B, T_W) * factors, 3).tolist()
        stages.append(StageProfile(t_f, t_b, t_w, round(M_B * size, 3), round(M_W * size, 3)))
    return tuple(stages)


def equal_stages(ranks: int) -> tuple[StageProfile, ...]:
    return _stages(np.ones((ranks, 3)), np.ones(ranks))


def times(ranks: int, rng: np.random.Generator) -> tuple[tuple[StageProfile, ...], float]:
    """Equal stages, except that T_F, T_B and T_W of each stage vary independently by up to 20 %.

    Like the other kinds below, it returns the stages and ``t_comm``: a delay in ms, or a matrix of
    delays by (source, target).
    """
    return _stages(rng.uniform(0.8, 1.2, (ranks, 3)), np.ones(ranks)), T_COMM


def memory(ranks: int, rng: np.random.Generator) -> tuple[tuple[StageProfile, ...], float]:
    """Equal stages, except that all times of a stage are multiplied by one factor of 0.8 to 1.2,
    and its M_B and M_W by one of 0.9 to 1.1."""
    factors = rng.uniform(0.8, 1.2, (ranks, 1)).repeat(3, axis=1)
    return _stages(factors, rng.uniform(0.9, 1.1, ranks)), T_COMM


def heavy_ends(ranks: int, rng: np.random.Generator) -> tuple[tuple[StageProfile, ...], float]:
    """Equal stages, except that the first and the last one (embedding, head) take 1.1 to 1.5 times
    as long."""
    factors = np.ones((ranks, 3))
    factors[[0, -1]] = rng.uniform(1.1, 1.5, (2, 1))
    return _stages(factors, np.ones(ranks)), T_COMM


def slow_link(ranks: int, rng: np.random.Generator) -> tuple[tuple[StageProfile, ...], Numbers]:
    """Equal stages on two nodes: a message between the two halves of the ranks takes 0.2 to 1
    T_F."""
    near = np.arange(ranks) < ranks // 2
    delays = np.where(near[:, None] == near, T_COMM, round(T_F * rng.uniform(0.2, 1.0), 3))
    return equal_stages(ranks), delays


def matrix(ranks: int, rng: np.random.Generator) -> tuple[tuple[StageProfile, ...], Numbers]:
    """Equal stages, with a delay of up to 0.3 T_F for each ordered pair of ranks."""
    return equal_stages(ranks), np.round(rng.uniform(0.0, 0.3 * T_F, (ranks, ranks)), 3)


KINDS: dict[str, Kind] = {
    "times": times,
    "memory": memory,
    "heavy-ends": heavy_ends,
    "slow-link": slow_link,
    "matrix": matrix,
}


def drawn(kind: str, ranks: int, rng: np.random.Generator, name: str = "") -> Profile:
    """A random profile of a kind in :data:`KINDS`."""
    stages, delays = KINDS[kind](ranks, rng)
    t_comm = delays if isinstance(delays, float) else tuple(map(tuple, delays.tolist()))
    return Profile(stages, ranks, t_comm, name=name)


def unequal(kind: str, seed: int, objective: Objective, shares: Sequence[float]) -> Problem:
    """A random problem, reproducible from kind and seed.

    P is uniform in 2..16, M log-uniform in 4..96. The memory limit is P x M_B times one of
    ``shares``, or that of a single microbatch if it is larger.
    """
    rng = np.random.default_rng([list(KINDS).index(kind), seed])
    ranks = int(rng.integers(2, 17))
    microbatches = round(4 * 24 ** rng.uniform())
    share = float(rng.choice(shares))
    profile = drawn(kind, ranks, rng, f"{kind}-{seed}")
    limit = round(share * ranks * M_B, 3)
    least = smallest_limit(Problem.linear(profile, microbatches, limit))[0]
    return Problem.linear(profile, microbatches, max(limit, least), objective)
