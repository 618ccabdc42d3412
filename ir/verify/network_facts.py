"""The network of a schedule document, for verifiers only: delays and wires.

It reads the fields of :mod:`..model.links`, but calculates with its own code and uses none of the
methods there, so that an error in either is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..model.profile import Link, Profile

_Link = tuple[float, float]  # latency in ms, bytes per ms


@dataclass(frozen=True, slots=True)
class Network:
    """Delays and wires between ranks.

    ``ranks``: their number. ``t_comm``: the profile's delay, or matrix of delays, in ms. ``link``:
    the default link, None if the profile has no links. ``special``: the links of all (source,
    target) pairs that do not use the default link. ``shared``: which messages share wires:
    ``pairs``, ``ports``, ``ring``, or groups of pairs (:class:`..model.links.Links`).
    """

    ranks: int
    t_comm: float | tuple[tuple[float, ...], ...] | None
    link: _Link | None
    special: dict[tuple[int, int], _Link]
    shared: str | tuple[tuple[tuple[int, int], ...], ...]

    def delay(self, source: int, target: int, size: float) -> float:
        """Milliseconds to send an activation, or its gradient, of ``size`` bytes."""
        if source == target:
            return 0.0
        if isinstance(self.t_comm, tuple):
            return self.t_comm[source][target]
        if self.t_comm is not None:
            return self.t_comm
        return self._over_links(source, target, size)

    def transfer_delay(self, source: int, target: int, size: float) -> float:
        """Milliseconds to send weights, or their gradient, of ``size`` bytes."""
        if self.link is None:
            return self.delay(source, target, size)
        return self._over_links(source, target, size)

    def wires(self, source: int, target: int) -> list[object]:
        """Hashable names of the wires that a message occupies; an empty list without links."""
        if self.link is None:
            return []
        if self.shared == "ports":
            return [("from", source), ("to", target)]
        if self.shared == "ring":
            return list(self._way(source, target))
        groups = self.shared if isinstance(self.shared, tuple) else ()
        return [(source, target), *(k for k in range(len(groups)) if (source, target) in groups[k])]

    def _over_links(self, source: int, target: int, size: float) -> float:
        if self.link is None:
            return 0.0
        if self.shared == "ring" and (source, target) not in self.special:
            hops = [self.special.get(hop, self.link) for hop in self._way(source, target)]
            return sum(hop[0] for hop in hops) + size / min(hop[1] for hop in hops)
        latency, speed = self.special.get((source, target), self.link)
        return latency + size / speed

    def _way(self, source: int, target: int) -> list[tuple[int, int]]:
        """The (from rank, to rank) of each hop on the shorter way around the ring.

        It goes upwards if both ways are equally long.
        """
        up, down = [source], [source]
        while up[-1] != target:
            up.append((up[-1] + 1) % self.ranks)
        while down[-1] != target:
            down.append((down[-1] - 1) % self.ranks)
        way = up if len(up) <= len(down) else down
        return list(pairwise(way))


def read_network(profile: Profile) -> Network:
    """The network that ``profile`` describes."""
    links = profile.links
    if links is None:
        return Network(profile.ranks, profile.t_comm, None, {}, "pairs")
    special: dict[tuple[int, int], _Link] = {}
    for a, b, own in links.pairs:
        # the first of two entries for a pair counts
        special.setdefault((a, b), _link(own))
        special.setdefault((b, a), _link(own))
    shared = links.shared if isinstance(links.shared, tuple) else links.shared.value
    return Network(profile.ranks, profile.t_comm, _link(links.default), special, shared)


def _link(link: Link) -> _Link:
    return link.latency, link.gigabytes_per_second * 1e6
