"""Links between ranks: the delays of messages, and the wires that messages occupy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BeforeValidator, PlainValidator, TypeAdapter, ValidationInfo

from ..documents.fields import MOST_RANKS, Bandwidth, Cost, known
from ..documents.json_reader import is_count
from ..documents.struct import Struct
from ..documents.validation import wrong
from .ops import FloatArray


@dataclass(frozen=True, slots=True)
class Link(Struct):
    """One link: latency in milliseconds, bandwidth in gigabytes (1e9 bytes) per second.

    In files, the latency defaults to 0, or, for the exceptions in :attr:`Links.pairs`, to the
    latency of the default link.
    """

    latency: Cost
    gigabytes_per_second: Bandwidth

    @classmethod
    def _before(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return {"latency": 0.0} | {k: v for k, v in data.items() if v is not None}

    def delay(self, size: float) -> float:
        """Milliseconds to send ``size`` bytes."""
        return self.latency + size / (self.gigabytes_per_second * 1e6)


class Sharing(Enum):
    """Which messages share a wire; a wire carries one message at a time.

    PAIRS: each ordered pair of ranks has its own wire. PORTS: each rank has one outgoing and one
    incoming wire. RING: ranks 0, 1, ..., P-1, 0 form a circle with one wire in each direction
    between neighbors; a message takes the shorter direction (upwards if both are equally long) and
    occupies all wires on its route.
    """

    PAIRS = "pairs"
    PORTS = "ports"
    RING = "ring"


Pair: TypeAlias = tuple[int, int]  # from rank, to rank
Groups: TypeAlias = tuple[tuple[Pair, ...], ...]


def _most(info: ValidationInfo) -> int:
    """The highest rank that may occur in the file.

    It is P - 1, or the highest rank that any file may have if the number of ranks is unknown.
    """
    return (known(info, "ranks") or MOST_RANKS) - 1


def _rank(value: Any, info: ValidationInfo) -> int:
    if not is_count(value) or not 0 <= value <= _most(info):
        raise wrong(f"a rank from 0 to {_most(info)}")
    return int(value)


def _pair(value: Any, info: ValidationInfo) -> Pair:
    ends = value if isinstance(value, list | tuple) and all(map(is_count, value)) else []
    if len(ends) != 2 or ends[0] == ends[1] or min(ends) < 0 or max(ends) > _most(info):
        raise wrong(f"[rank, another rank] from 0 to {_most(info)}")
    return ends[0], ends[1]


def _special(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise wrong("[rank, rank, link]")
    common = info.data.get("default")
    if isinstance(value[2], dict) and value[2].get("latency") is None and common is not None:
        return *value[:2], value[2] | {"latency": common.latency}
    return tuple(value)


def _sharing(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, list | tuple):
        return _GROUPS.validate_python(value, context=info.context)
    if value not in ("pairs", "ports", "ring", *Sharing):
        raise wrong("pairs, ports, ring or a list of groups of pairs")
    return Sharing(value)


Rank: TypeAlias = Annotated[int, PlainValidator(_rank)]
SpecialLink: TypeAlias = Annotated[tuple[Rank, Rank, Link], BeforeValidator(_special)]
_GROUPS = TypeAdapter(tuple[tuple[Annotated[Pair, PlainValidator(_pair)], ...], ...])


@dataclass(frozen=True, slots=True)
class Links(Struct):
    """The links between all ranks: ``default``, and ``pairs`` of ranks that have another link.

    An entry ``(a, b, link)`` of ``pairs`` applies in both directions; if a pair has two entries,
    the first one counts. ``shared``: which messages share wires. If it is a tuple of groups of
    pairs, each group is one wire that its pairs share, in addition to each pair's own wire. In a
    ring, ``default`` is the link between neighbors; a pair that is further apart and has no entry
    in ``pairs`` has the sum of the latencies and the minimum of the bandwidths on its route.
    """

    INLINE = "default"

    default: Link
    pairs: tuple[SpecialLink, ...] = ()
    shared: Annotated[Sharing | Groups, PlainValidator(_sharing)] = Sharing.PAIRS

    def values(self) -> dict[str, Any]:
        groups = {"shared": list(self.shared)} if isinstance(self.shared, tuple) else {}
        return Struct.values(self) | groups  # an empty tuple is not the default

    def delays(self, size: float, ranks: int) -> FloatArray:
        """Milliseconds to send ``size`` bytes between ranks, (P, P), row: sender; diagonal 0."""
        latency, rate = self.matrices(ranks)
        result: FloatArray = latency + size / (rate * 1e6)
        np.fill_diagonal(result, 0.0)
        return result

    def matrices(self, ranks: int) -> tuple[FloatArray, FloatArray]:
        """Two arrays, (P, P), row: sender: latency in ms, bandwidth in gigabytes per second."""
        latency = np.full((ranks, ranks), self.default.latency, dtype=np.float64)
        rate = np.full((ranks, ranks), self.default.gigabytes_per_second, dtype=np.float64)
        self._enter_pairs(latency, rate)
        if self.shared is Sharing.RING:
            _go_round(latency, rate)
            self._enter_pairs(latency, rate)
        return latency, rate

    def _enter_pairs(self, latency: FloatArray, rate: FloatArray) -> None:
        for a, b, link in reversed(self.pairs):  # the first of two entries counts
            latency[a, b] = latency[b, a] = link.latency
            rate[a, b] = rate[b, a] = link.gigabytes_per_second

    def wires(self, source: int, target: int, ranks: int) -> tuple[str, ...]:
        """The names of the wires that a message from ``source`` to ``target`` occupies."""
        own = f"{source} to {target}"
        if self.shared is Sharing.PAIRS:
            return (own,)
        if self.shared is Sharing.PORTS:
            return f"out of {source}", f"into {target}"
        if self.shared is Sharing.RING:
            return tuple(f"{a} to {b}" for a, b in _hops(source, target, ranks))
        assert isinstance(self.shared, tuple)
        pair = source, target
        return own, *(f"group {k}" for k, group in enumerate(self.shared) if pair in group)

    def shares(self, source: int, target: int, ranks: int) -> tuple[float, ...]:
        """The fraction of a message's duration for which it occupies each of its :meth:`wires`.

        In a ring, a message is as slow as the slowest hop on its route. A faster hop is occupied
        for a smaller fraction of the time, and carries other messages in the rest of it.
        """
        wires = self.wires(source, target, ranks)
        if self.shared is not Sharing.RING:
            return (1.0,) * len(wires)
        _, rate = self.matrices(ranks)
        whole = rate[source, target]
        return tuple(min(1.0, float(whole / rate[hop])) for hop in _hops(source, target, ranks))


def _hops(source: int, target: int, ranks: int) -> Iterator[Pair]:
    """Yield the (from rank, to rank) of each hop on the shorter route around the ring."""
    up = (target - source) % ranks
    step, number = (1, up) if 2 * up <= ranks else (-1, ranks - up)
    for i in range(number):
        yield (source + i * step) % ranks, (source + (i + 1) * step) % ranks


def _go_round(latency: FloatArray, rate: FloatArray) -> None:
    """Set latency and bandwidth of all pairs that are not neighbors in the ring, in both arrays.

    They are the sum of the latencies and the minimum of the bandwidths on the route between the
    ranks.
    """
    ranks = len(latency)
    here = np.arange(ranks)
    hop_latency, hop_rate = latency[here, (here + 1) % ranks], rate[here, (here + 1) % ranks]
    total, least = hop_latency, hop_rate
    for far in range(2, ranks // 2 + 1):
        last, there = (here + far - 1) % ranks, (here + far) % ranks
        total, least = total + hop_latency[last], np.minimum(least, hop_rate[last])
        latency[here, there], rate[here, there] = total, least
        if 2 * far < ranks:  # else the reverse route is upwards, too, and was set above
            latency[there, here], rate[there, here] = total, least
