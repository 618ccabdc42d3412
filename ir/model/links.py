"""Links: how long a message takes from rank to rank, and which wires it occupies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np

from .ops import FloatArray


@dataclass(frozen=True, slots=True)
class Link:
    """One link: latency in milliseconds, bandwidth in gigabytes (1e9 bytes) a second."""

    latency: float
    gigabytes_per_second: float

    def delay(self, size: float) -> float:
        """Milliseconds to carry ``size`` bytes."""
        return self.latency + size / (self.gigabytes_per_second * 1e6)


class Sharing(Enum):
    """Which messages share a wire; a wire carries one at a time.

    PAIRS: each ordered pair of ranks has a wire of its own. PORTS: each rank has one wire out and
    one wire in. RING: ranks 0, 1, ..., P-1, 0 in a circle, a wire each way between neighbours; a
    message goes the shorter way round, upwards where both are as long, over all wires on it at
    once.
    """

    PAIRS = "pairs"
    PORTS = "ports"
    RING = "ring"


Pair: TypeAlias = tuple[int, int]  # from rank, to rank
Groups: TypeAlias = tuple[tuple[Pair, ...], ...]


@dataclass(frozen=True, slots=True)
class Links:
    """The link between any two ranks, and the pairs ``(a, b, link)`` that differ, both directions.

    ``shared``: which messages share wires; groups of pairs are wires that the pairs of a group
    share, beside each pair's own. In a ring ``default`` is a hop between neighbours, and a pair
    further apart that has no entry of its own takes the sum of the latencies and the least of the
    bandwidths on its way. Of two entries for one pair the first counts.
    """

    default: Link
    pairs: tuple[tuple[int, int, Link], ...] = ()
    shared: Sharing | Groups = Sharing.PAIRS

    def delays(self, size: float, ranks: int) -> FloatArray:
        """Milliseconds for ``size`` bytes from rank (row) to rank, shape (P, P), diagonal 0."""
        latency, rate = self.matrices(ranks)
        result: FloatArray = latency + size / (rate * 1e6)
        np.fill_diagonal(result, 0.0)
        return result

    def matrices(self, ranks: int) -> tuple[FloatArray, FloatArray]:
        """Latency in ms and gigabytes a second from rank (row) to rank, both (P, P)."""
        latency = np.full((ranks, ranks), self.default.latency, dtype=np.float64)
        rate = np.full((ranks, ranks), self.default.gigabytes_per_second, dtype=np.float64)
        self._enter_pairs(latency, rate)
        if self.shared is Sharing.RING:
            _go_round(latency, rate)
            self._enter_pairs(latency, rate)
        return latency, rate

    def _enter_pairs(self, latency: FloatArray, rate: FloatArray) -> None:
        for a, b, link in reversed(self.pairs):  # so that the first of two for one pair counts
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
        """For how much of its time a message from ``source`` to ``target`` keeps each of its wires.

        One that passes a slow hop of a ring comes at that hop's pace, and the faster ones
        carry others beside it.
        """
        wires = self.wires(source, target, ranks)
        if self.shared is not Sharing.RING:
            return (1.0,) * len(wires)
        _, rate = self.matrices(ranks)
        whole = rate[source, target]
        return tuple(min(1.0, float(whole / rate[hop])) for hop in _hops(source, target, ranks))


def _hops(source: int, target: int, ranks: int) -> Iterator[Pair]:
    """The neighbours that a message passes, the shorter way round the ring."""
    up = (target - source) % ranks
    step, number = (1, up) if 2 * up <= ranks else (-1, ranks - up)
    for i in range(number):
        yield (source + i * step) % ranks, (source + (i + 1) * step) % ranks


def _go_round(latency: FloatArray, rate: FloatArray) -> None:
    """Fills in all pairs that are no neighbours on the ring from those that are."""
    ranks = len(latency)
    here = np.arange(ranks)
    hop_latency, hop_rate = latency[here, (here + 1) % ranks], rate[here, (here + 1) % ranks]
    total, least = hop_latency, hop_rate
    for far in range(2, ranks // 2 + 1):
        last, there = (here + far - 1) % ranks, (here + far) % ranks
        total, least = total + hop_latency[last], np.minimum(least, hop_rate[last])
        latency[here, there], rate[here, there] = total, least
        if 2 * far < ranks:  # else the way back goes on round the ring
            latency[there, here], rate[there, here] = total, least
