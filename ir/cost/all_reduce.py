"""The ring all-reduce that sums the gradients of a replicated stage over its ranks.

With h ranks, each sends its gradient cut in h parts to the next one, a part at a time, in 2 (h - 1)
steps (Patarasuk and Yuan, 2009). The wires between them are occupied until it is over.
"""

from __future__ import annotations

from typing import NamedTuple

from ..model.profile import Profile
from ..model.schedule import Schedule, TransferKind
from ..model.transfers import holders, size


class AllReduce(NamedTuple):
    """``ranks`` take part, ascending; ``duration`` in ms; ``wires`` by name."""

    ranks: tuple[int, ...]
    duration: float
    wires: tuple[str, ...]


def all_reduces(schedule: Schedule) -> list[AllReduce]:
    """All-reduces at the end of an iteration, one a replicated stage, in their order."""
    profile = schedule.problem.profile
    return [
        _all_reduce(profile, ranks, size(profile, TransferKind.GRADIENT, stage))
        for stage, ranks in enumerate(holders(schedule))
        if len(ranks) > 1
    ]


def _all_reduce(profile: Profile, ranks: tuple[int, ...], bytes_each: float) -> AllReduce:
    hops = list(zip(ranks, (*ranks[1:], ranks[0]), strict=True))
    part = bytes_each / len(ranks)
    delays = profile.delays(None) if profile.links is None else profile.link_delays(part)
    step = max(float(delays[hop]) for hop in hops)
    busy: dict[str, float] = {}
    for hop, wires in zip(hops, profile.wires(hops), strict=True):
        for wire in wires:  # hops that share one take turns
            busy[wire] = busy.get(wire, 0.0) + float(delays[hop])
    return AllReduce(ranks, 2 * (len(ranks) - 1) * max(step, *busy.values(), 0.0), tuple(busy))
