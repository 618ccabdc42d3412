"""A placement of several stages per rank that shares out their work as evenly as it can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.profile import Profile

MOST_STAGES = 64
"""Stages up to which moves and swaps are tried: each look takes their square."""


def balanced(profile: Profile, slow: Mapping[int, float], limit: Sequence[float]) -> Placement:
    """Any stage on any rank, the busiest of which computes as little as is found.

    The longest stage is first, each on the rank that ends it earliest (LPT; Graham, 1969); then
    stages move, or change places, while that helps the busiest rank. ``slow``: by rank, how many
    times as long it takes. ``limit``: memory of each rank; of ranks that are alike, those with the
    most have the stages that hold the most.
    """
    pace = [slow.get(rank, 1.0) for rank in range(profile.ranks)]
    work = [stage.t_f + stage.fused for stage in profile.stages]
    owners = _longest_first(work, pace)
    while len(work) <= MOST_STAGES and (better := _better(owners, work, pace)) is not None:
        owners = better
    if not slow:
        owners = _renumbered(owners, profile, limit)
    return Placement.of_stages(owners, ranks=profile.ranks)


def _longest_first(work: Sequence[float], pace: Sequence[float]) -> list[int]:
    """The rank of each stage; of ranks that end it at the same time the one with fewer stages."""
    owners, loads, counts = [0] * len(work), [0.0] * len(pace), [0] * len(pace)
    for stage in sorted(range(len(work)), key=lambda stage: -work[stage]):
        rank = min(range(len(pace)), key=lambda r: (loads[r] + work[stage] * pace[r], counts[r], r))
        owners[stage] = rank
        loads[rank] += work[stage] * pace[rank]
        counts[rank] += 1
    return owners


def _better(owners: list[int], work: Sequence[float], pace: Sequence[float]) -> list[int] | None:
    """The best of ``owners`` with a stage of the busiest rank moved, or changed for another; None
    where none helps."""
    loads = _loads(owners, work, pace)
    busiest = max(range(len(pace)), key=loads.__getitem__)
    least, best = loads[busiest] * (1 - 1e-9), None
    for changed in _changed(owners, busiest, len(pace)):
        found = _loads(changed, work, pace)
        ranks = {busiest, *(new for old, new in zip(owners, changed, strict=True) if old != new)}
        most = max(found[rank] for rank in ranks)
        if most < least:
            least, best = most, changed
    return best


def _changed(owners: list[int], busiest: int, ranks: int) -> Iterator[list[int]]:
    own = [stage for stage, rank in enumerate(owners) if rank == busiest]
    others = [stage for stage, rank in enumerate(owners) if rank != busiest]
    for stage, rank in product(own, range(ranks)):
        if rank != busiest and len(own) > 1:
            yield [rank if s == stage else owner for s, owner in enumerate(owners)]
    for stage, other in product(own, others):
        swapped = owners.copy()
        swapped[stage], swapped[other] = swapped[other], swapped[stage]
        yield swapped


def _loads(owners: Sequence[int], work: Sequence[float], pace: Sequence[float]) -> list[float]:
    loads = [0.0] * len(pace)
    for stage, rank in enumerate(owners):
        loads[rank] += work[stage] * pace[rank]
    return loads


def _renumbered(owners: Sequence[int], profile: Profile, limit: Sequence[float]) -> list[int]:
    """The same groups of stages on other ranks: the group that holds most memory on the rank with
    the largest limit. A stage holds the more microbatches the earlier it is."""
    groups = list(dict.fromkeys(owners))
    groups += [rank for rank in range(profile.ranks) if rank not in groups]
    if len(set(limit)) > 1:
        holds = dict.fromkeys(groups, 0.0)
        for stage, rank in enumerate(owners):
            holds[rank] += profile.stages[stage].m_b * (profile.num_stages - stage)
        groups.sort(key=lambda group: -holds[group])
    roomy = sorted(range(profile.ranks), key=lambda rank: (-limit[rank], rank))
    numbers = dict(zip(groups, roomy, strict=True))
    return [numbers[rank] for rank in owners]
