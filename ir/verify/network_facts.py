"""The network of a schedule document as plain facts: delays and wires, for the verifiers alone.

It shares no line with :mod:`..model.links`, so that the one can disagree with the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..formats.json_reader import Reader, is_amount, is_matrix, show

_SHARED = ("pairs", "ports", "ring")
_Link = tuple[float, float]  # latency in ms, bytes a ms


@dataclass(frozen=True, slots=True)
class Network:
    """``link``: of most pairs, None without links; ``special``: of each pair that differs.

    ``shared`` is the document's word or its list of groups of pairs.
    """

    ranks: int
    t_comm: float | list[list[float]] | None
    link: _Link | None
    special: dict[tuple[int, int], _Link]
    shared: Any

    def delay(self, source: int, target: int, size: float) -> float:
        """Milliseconds for an activation or its gradient of ``size`` bytes."""
        if source == target:
            return 0.0
        if isinstance(self.t_comm, list):
            return self.t_comm[source][target]
        if self.t_comm is not None:
            return self.t_comm
        return self._over_links(source, target, size)

    def travel_delay(self, source: int, target: int, size: float) -> float:
        """Milliseconds for weights or their gradient of ``size`` bytes."""
        if self.link is None:
            return self.delay(source, target, size)
        return self._over_links(source, target, size)

    def wires(self, source: int, target: int) -> list[object]:
        """What a message occupies; nothing where the document has no links."""
        if self.link is None:
            return []
        if self.shared == "ports":
            return [("from", source), ("to", target)]
        if self.shared == "ring":
            return list(self._way(source, target))
        groups = self.shared if isinstance(self.shared, list) else []
        return [
            (source, target),
            *(k for k in range(len(groups)) if [source, target] in groups[k]),
        ]

    def _over_links(self, source: int, target: int, size: float) -> float:
        if self.link is None:
            return 0.0
        if self.shared == "ring" and (source, target) not in self.special:
            hops = [self.special.get(hop, self.link) for hop in self._way(source, target)]
            return sum(hop[0] for hop in hops) + size / min(hop[1] for hop in hops)
        latency, speed = self.special.get((source, target), self.link)
        return latency + size / speed

    def _way(self, source: int, target: int) -> list[tuple[int, int]]:
        """The shorter of the two ways round the ring, neighbour by neighbour; up on a tie."""
        up, down = [source], [source]
        while up[-1] != target:
            up.append((up[-1] + 1) % self.ranks)
        while down[-1] != target:
            down.append((down[-1] - 1) % self.ranks)
        way = up if len(up) <= len(down) else down
        return list(pairwise(way))


def read_network(profile: Reader, ranks: int) -> Network:
    """The network of a profile document; its faults go into the reader's errors."""
    t_comm = profile.data.get("t_comm")
    if not (t_comm is None or is_amount(t_comm) or is_matrix(t_comm, ranks)):
        profile.wrong("t_comm", t_comm, f"a finite number >= 0 or a {ranks} x {ranks} matrix")
    if not profile.has("links"):
        return Network(ranks, t_comm, None, {}, None)
    links = profile.child("links")
    common = _link(links, 0.0)
    special: dict[tuple[int, int], _Link] = {}
    for i, entry in enumerate(links.items("pairs") if links.has("pairs") else []):
        if not isinstance(entry, list) or len(entry) != 3:
            links.wrong(f"pairs[{i}]", entry, "[rank, rank, link]")
            continue
        a, b = (_rank(links, f"pairs[{i}][{k}]", entry[k], ranks) for k in (0, 1))
        where = f"{links.where}: pairs[{i}]"
        link = _link(Reader(entry[2], where, links.errors), common[0])
        # of two entries for one pair the first counts
        special.setdefault((a, b), link)
        special.setdefault((b, a), link)
    shared = links.data.get("shared")
    if shared is not None and shared not in _SHARED:
        _check_groups(links, shared, ranks)
    return Network(ranks, t_comm, common, special, shared)


def _rank(reader: Reader, key: str, value: object, ranks: int) -> int:
    if _is_rank(value, ranks):
        assert isinstance(value, int)
        return value
    reader.wrong(key, value, f"a rank from 0 to {ranks - 1}")
    return 0


def _is_rank(value: object, ranks: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < ranks


def _link(reader: Reader, latency: float) -> _Link:
    if reader.has("latency"):
        latency = reader.number("latency")
    bandwidth = reader.number("gigabytes_per_second")
    if bandwidth == 0:
        reader.wrong("gigabytes_per_second", bandwidth, "more than 0")
        bandwidth = 1.0
    return latency, bandwidth * 1e6


def _check_groups(links: Reader, shared: object, ranks: int) -> None:
    groups = shared if isinstance(shared, list) else [shared]
    pairs = [pair for group in groups for pair in (group if isinstance(group, list) else [group])]
    wrong = [pair for pair in pairs if not _is_pair(pair, ranks)]
    if wrong:
        links.fail(
            f"{links.where}: shared: expected {', '.join(_SHARED)} or a list of groups of "
            f"pairs of two ranks from 0 to {ranks - 1}, got {show(wrong[0])}"
        )


def _is_pair(value: object, ranks: int) -> bool:
    if not isinstance(value, list) or len(value) != 2 or value[0] == value[1]:
        return False
    return all(_is_rank(end, ranks) for end in value)
