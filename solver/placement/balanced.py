"""A placement with several stages per rank that balances the ranks' work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.profile import Profile

from ..core.tolerances import ROUNDING

MOST_STAGES = 64
"""Moves and swaps of stages are tried only up to this number of stages, as there are quadratically
many."""


def balanced(profile: Profile, slow: Mapping[int, float], limit: Sequence[float]) -> Placement:
    """Return a placement in which the busiest rank has little work, though perhaps not the least.

    Longest processing time first (LPT; Graham, 1969): stages in descending order of work, each to
    the rank that finishes it earliest. Then local search moves or swaps stages while that makes the
    busiest rank end earlier. ``slow``: for each slow rank, how many times as long its ops take.
    ``limit``: the memory limit of each rank. If no rank is slow, the ranks with the largest limits
    get the stages that hold the most memory.
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
    """Return the rank of each stage by LPT (see :func:`balanced`).

    On ties a stage goes to the rank with fewer stages. ``work``: the time of each stage. ``pace``:
    for each rank, how many times as long its ops take.
    """
    owners, loads, counts = [0] * len(work), [0.0] * len(pace), [0] * len(pace)
    for stage in sorted(range(len(work)), key=lambda stage: -work[stage]):
        rank = min(range(len(pace)), key=lambda r: (loads[r] + work[stage] * pace[r], counts[r], r))
        owners[stage] = rank
        loads[rank] += work[stage] * pace[rank]
        counts[rank] += 1
    return owners


def _better(owners: list[int], work: Sequence[float], pace: Sequence[float]) -> list[int] | None:
    """Return the rank of each stage after the best change, or None if no change helps.

    A change moves a stage of the busiest rank to another rank, or swaps it with a stage of another
    rank. ``owners``: the rank of each stage before the change. ``work``, ``pace``: as for
    :func:`_longest_first`.
    """
    loads = _loads(owners, work, pace)
    busiest = max(range(len(pace)), key=loads.__getitem__)
    least, best = loads[busiest] * (1 - ROUNDING), None
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
    """Return the rank of each stage after ranks have been exchanged to suit their memory limits.

    ``owners``: the rank of each stage before; stages that share a rank still do so afterwards. The
    stages that together hold the most memory are put on the rank with the largest limit, and so on.
    The earlier a stage is, the more microbatches it holds.
    """
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
