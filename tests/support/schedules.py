"""Schedules of two to four ranks for training tests."""

from __future__ import annotations

import itertools

from pipeloom.ir import Profile, Schedule, StageProfile, timed
from pipeloom.solver import build_family
from tests.support.by_hand import by_hand

V = "v, every other backward split"


def profile(ranks: int) -> Profile:
    return Profile((StageProfile(2.0, 2.0, 1.5, 1.0, 0.5, t_fb=4.0),) * ranks, ranks, t_comm=0.1)


def schedule(family: str, ranks: int, microbatches: int) -> Schedule:
    if family == V:
        return folded(ranks, microbatches)
    return build_family(family, profile(ranks), microbatches)


def folded(ranks: int, microbatches: int) -> Schedule:
    """Two stages per rank, the second half in reverse order, so that both ends of the model are on
    rank 0.

    All forwards, then all backwards; odd microbatches with BW, even ones with B and W.
    """
    stages = 2 * ranks
    owners = [min(s, stages - 1 - s) for s in range(stages)]
    rows: list[list[str]] = [[] for _ in range(ranks)]
    for j, s in itertools.product(range(microbatches), range(stages)):
        rows[owners[s]].append(f"{s}F{j}")
    for j, s in itertools.product(range(microbatches), reversed(range(stages))):
        rows[owners[s]].append(f"{s}BW{j}" if j % 2 else f"{s}B{j}")
    for j, s in itertools.product(range(0, microbatches, 2), range(stages)):
        rows[owners[s]].append(f"{s}W{j}")
    return timed(by_hand(*map(" ".join, rows), profile=profile(ranks).split(2)))
