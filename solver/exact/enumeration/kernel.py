"""One step of :mod:`.search`: every way to go on from the states of a layer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray

F, B, W = range(3)
BASE = 1 << 20  # of a step as a number: the move, and above it by how many inputs later an F waits
UNSTARTED = -1.0


class Moves(NamedTuple):
    """The moves by which ranks go on, by row: an F, a B, a W, a BW, or an F and a BW at once.

    ``parts``: (N, 3), the classes whose F, B and W it runs, -1 for none. ``rank``, ``length``:
    (N,). ``filler``: whether a schedule loses nothing where it is moved into a gap in which it
    fits.
    """

    parts: IntArray
    rank: IntArray
    length: FloatArray
    filler: npt.NDArray[np.bool_]


class Small(NamedTuple):
    """A problem by *class*: the microbatches of one stage on one rank, K of a class at most.

    ``rank``, ``size``: (C,), of each class its rank, its microbatches. ``source``: (2, C), the
    class whose F, and whose B, makes the input of its F and its B; -1 for none. ``delay``: (2, C).
    ``least``: (3, C), the time of F, of B until its gradient leaves, and of B and W at least.
    ``saving``: (2, C), the most that running at once may save of an F, and of a BW. ``t_w``: (C,).
    ``m_b``, ``m_w``: (C,). ``limit``: (P,). ``period``: whether spans count from a rank's own
    start.
    """

    rank: IntArray
    size: IntArray
    source: IntArray
    delay: FloatArray
    least: FloatArray
    saving: FloatArray
    t_w: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    limit: FloatArray
    period: bool


class Beginnings(NamedTuple):
    """All states, N at most; ``filled``: how many there are, and how many more found no room.

    ``counts``: (N, 3, C), F's, B's and W's done. ``clock``, ``first``: (N, P), of each rank, since
    when it is free and when it began. ``came``: (N, 2, C, K), when inputs of F's and B's arrive.
    ``latest``: (N,), the last start. ``parent``, ``step``: (N,), the state before, and what led
    here. ``chain``, ``heads``: a hash table by counts. ``layers``: the last state with so many ops
    done, ``layer`` the one before it with as many.
    """

    counts: npt.NDArray[np.int8]
    clock: FloatArray
    first: FloatArray
    came: FloatArray
    latest: FloatArray
    parent: IntArray
    step: IntArray
    dead: npt.NDArray[np.bool_]
    chain: IntArray
    heads: IntArray
    layer: IntArray
    layers: IntArray
    filled: IntArray


@kernel
def expand(at: Small, moves: Moves, to: Beginnings, done: int, below: float) -> int:
    """Adds what may follow the states with so many ops done; returns how many they were.

    Beginnings of which no schedule costs less than ``below`` are left out.
    """
    ends = np.empty(to.came.shape[2:])
    room, starts = np.empty(len(at.limit)), np.empty(len(moves.rank))
    i, number = to.layers[done], 0
    while i >= 0:
        number += 1
        if not to.dead[i] and _least(at, to, i, ends) < below:
            begun = not at.period or _begun(at, to, i)
            _rooms(at, to, i, room)
            for m in range(len(starts)):
                starts[m] = _start(at, moves, m, to, i, room)
            for m in range(len(starts)):
                if starts[m] < np.inf and not _leaves_gap(moves, starts, m, begun):
                    _follow(at, moves, to, i, m, starts[m], begun, done, below, ends)
        i = to.layer[i]
    return number


@kernel
def _begun(at: Small, to: Beginnings, i: int) -> bool:
    """Whether all ranks that have ops have run one."""
    for rank in at.rank:  # noqa: SIM110
        if to.first[i, rank] == UNSTARTED:
            return False
    return True


@kernel
def _rooms(at: Small, to: Beginnings, i: int, room: FloatArray) -> None:
    """The memory that is free on each rank."""
    counts = to.counts[i]
    for rank in range(len(room)):
        room[rank] = at.limit[rank]
    for c in range(len(at.rank)):
        room[at.rank[c]] -= (counts[F, c] - counts[B, c]) * at.m_b[c]
        room[at.rank[c]] -= (counts[B, c] - counts[W, c]) * at.m_w[c]


@kernel
def _start(  # noqa: PLR0917
    at: Small, moves: Moves, m: int, to: Beginnings, i: int, room: FloatArray
) -> float:
    """The time at which the move would start; infinite where it may not."""
    counts, rank = to.counts[i], moves.rank[m]
    start = float(to.clock[i, rank])
    for part in range(2):
        c = moves.parts[m, part]
        if c < 0:
            continue
        k, source = counts[part, c], at.source[part, c]
        if k >= (at.size[c] if part == F else counts[F, c]):
            return np.inf
        if part == F and at.m_b[c] > room[rank]:
            return np.inf
        if source >= 0:
            if counts[part, source] <= k:
                return np.inf
            start = max(start, to.came[i, part, c, k])
    c = moves.parts[m, W]
    if c >= 0 and moves.parts[m, B] < 0 and counts[W, c] >= counts[B, c]:
        return np.inf
    return start


@kernel
def _leaves_gap(moves: Moves, starts: FloatArray, m: int, begun: bool) -> bool:
    """Whether a filler fits before the move's start: no rank begins anything before that then."""
    for other in range(len(starts)):
        if moves.filler[other] and starts[other] < starts[m]:
            if moves.parts[other, F] >= 0 and not begun:
                continue
            if starts[other] + moves.length[other] <= starts[m]:
                return True
    return False


@kernel
def _follow(  # noqa: PLR0917
    at: Small,
    moves: Moves,
    to: Beginnings,
    i: int,
    m: int,
    start: float,
    begun: bool,
    done: int,
    below: float,
    ends: FloatArray,
) -> None:
    """Adds the states after the move. An F may wait for a later input while not all have begun."""
    f, k, last = moves.parts[m, F], 0, 1
    if not begun and f >= 0 and at.source[F, f] >= 0:
        k, last = int(to.counts[i, F, f]), int(to.counts[i, F, at.source[F, f]])
    for later in range(k, last):
        came = start if later == k else to.came[i, F, f, later]
        if begun:
            came = max(came, to.latest[i])
        if came >= to.latest[i] and (later == k or came > start):
            _add(at, moves, to, i, m, came, later - k, done, below, ends)


@kernel
def _add(  # noqa: PLR0917
    at: Small,
    moves: Moves,
    to: Beginnings,
    i: int,
    m: int,
    start: float,
    wait: int,
    done: int,
    below: float,
    ends: FloatArray,
) -> None:
    """Adds the state after move ``m`` at ``start``, unless it is no better than another one."""
    n = to.filled[0]
    if n >= len(to.parent):
        to.filled[1] += 1
        return
    _copy(to, i, n)
    rank, end = moves.rank[m], start + moves.length[m]
    to.clock[n, rank], to.latest[n] = end, start
    if to.first[n, rank] == UNSTARTED:
        to.first[n, rank] = start
    for part in range(3):
        c = moves.parts[m, part]
        if c < 0:
            continue
        done += 1
        k = to.counts[n, part, c]
        to.counts[n, part, c] = k + 1
        for other in range(len(at.rank)):
            if part < W and at.source[part, other] == c:
                to.came[n, part, other, k] = end + at.delay[part, other]
    begun = not at.period or _begun(at, to, n)
    if begun:
        _forget(at, to, n)
    if _least(at, to, n, ends) >= below:
        return
    head = _hash(to, n)
    if _known(to, n, head, not begun):
        return
    to.parent[n], to.step[n], to.dead[n] = i, wait * BASE + m, False
    to.chain[n], to.heads[head] = to.heads[head], n
    to.layer[n], to.layers[done] = to.layers[done], n
    to.filled[0] = n + 1


@kernel
def _copy(to: Beginnings, i: int, n: int) -> None:
    for rank in range(to.clock.shape[1]):
        to.clock[n, rank], to.first[n, rank] = to.clock[i, rank], to.first[i, rank]
    for c in range(to.counts.shape[2]):
        for part in range(3):
            to.counts[n, part, c] = to.counts[i, part, c]
        for part in range(2):
            for k in range(to.came.shape[3]):
                to.came[n, part, c, k] = to.came[i, part, c, k]


@kernel
def _forget(at: Small, to: Beginnings, n: int) -> None:
    """Makes what is past count no longer: nothing begins before the latest start, nor before
    its rank is free."""
    counts, clock, came = to.counts[n], to.clock[n], to.came[n]
    for c in range(len(at.rank)):
        if counts[W, c] < at.size[c]:
            clock[at.rank[c]] = max(clock[at.rank[c]], to.latest[n])
    for part in range(2):
        for c in range(len(at.rank)):
            for k in range(came.shape[2]):
                source = at.source[part, c]
                if counts[part, c] <= k and source >= 0 and k < counts[part, source]:
                    came[part, c, k] = max(came[part, c, k], clock[at.rank[c]])
                else:
                    came[part, c, k] = 0.0
    to.latest[n] = 0.0


@kernel
def _hash(to: Beginnings, n: int) -> int:
    """The place of a state's counts in the hash table: FNV-1a."""
    value = np.uint64(14695981039346656037)
    for part in range(3):
        for c in range(to.counts.shape[2]):
            value = (value ^ np.uint64(to.counts[n, part, c])) * np.uint64(1099511628211)
    return int((value ^ (value >> np.uint64(29))) % np.uint64(len(to.heads)))


@kernel
def _known(to: Beginnings, n: int, head: int, equal: bool) -> bool:
    """Whether state n is no better than one that is there; those that are no better die.

    Of two states with the same ops done one is no worse whose clocks and inputs come no later and
    whose ranks began no earlier; before all have begun they have to be ``equal``.
    """
    at = to.heads[head]
    while at >= 0:
        if not to.dead[at] and _same_done(to, at, n):
            no_worse = _no_worse(to, at, n)
            no_better = _no_worse(to, n, at)
            if no_worse and (no_better or not equal):
                return True
            if no_better and not equal:
                to.dead[at] = True
        at = to.chain[at]
    return False


@kernel
def _same_done(to: Beginnings, a: int, b: int) -> bool:
    for part in range(3):
        for c in range(to.counts.shape[2]):
            if to.counts[a, part, c] != to.counts[b, part, c]:
                return False
    return True


@kernel
def _no_worse(to: Beginnings, a: int, b: int) -> bool:
    for rank in range(to.clock.shape[1]):
        if to.clock[a, rank] > to.clock[b, rank] or to.first[a, rank] < to.first[b, rank]:
            return False
    if to.latest[a] > to.latest[b]:
        return False
    for part in range(2):
        for c in range(to.came.shape[2]):
            for k in range(to.came.shape[3]):
                if to.came[a, part, c, k] > to.came[b, part, c, k]:
                    return False
    return True


@kernel
def _least(at: Small, to: Beginnings, i: int, ends: FloatArray) -> float:
    """No schedule that goes on from the state costs less: by ranks and by chains."""
    _forwards(at, to, i, ends)
    return max(_by_ranks(at, to, i), _by_chains(at, to, i, ends))


@kernel
def _by_ranks(at: Small, to: Beginnings, i: int) -> float:
    """Each rank has its ops left to run, of which running at once saves no more than their F's may
    nor than their BW's may."""
    counts, first, ranks = to.counts[i], to.first[i], len(at.limit)
    left = np.zeros((3, ranks))
    for c in range(len(at.rank)):
        rank, f, b = at.rank[c], at.size[c] - counts[F, c], at.size[c] - counts[B, c]
        left[0, rank] += f * at.least[0, c] + b * at.least[2, c]
        left[0, rank] += (counts[B, c] - counts[W, c]) * at.t_w[c]
        left[1, rank] += f * at.saving[0, c]
        left[2, rank] += b * at.saving[1, c]
    cost = 0.0
    for rank in range(ranks):
        span = left[0, rank] - min(left[1, rank], left[2, rank])
        if first[rank] != UNSTARTED:
            span += to.clock[i, rank] - first[rank]
        cost = max(cost, span)
    return cost


@kernel
def _forwards(at: Small, to: Beginnings, i: int, ends: FloatArray) -> None:
    """Finds when F's end at the earliest: each class runs its own one by one, with inputs when
    they come or as the class before can make them."""
    counts = to.counts[i]
    for c in range(len(at.rank)):
        now, source = to.clock[i, at.rank[c]], at.source[F, c]
        for k in range(counts[F, c], at.size[c]):
            if source >= 0 and k < counts[F, source]:
                now = max(now, to.came[i, F, c, k])
            elif source >= 0:
                now = max(now, ends[source, k] + at.delay[F, c])
            now += at.least[0, c]
            ends[c, k] = now


@kernel
def _by_chains(at: Small, to: Beginnings, i: int, ends: FloatArray) -> float:
    """Each class runs its B's one by one too, behind its F's; behind a B come the B's and W's of
    its class that are left."""
    counts, cost = to.counts[i], 0.0
    for c in range(len(at.rank) - 1, -1, -1):
        rank, source = at.rank[c], at.source[B, c]
        now, first = to.clock[i, rank], to.first[i, rank]
        for k in range(counts[B, c], at.size[c]):
            if k >= counts[F, c]:
                now = max(now, ends[c, k])
            if source >= 0 and k < counts[B, source]:
                now = max(now, to.came[i, B, c, k])
            elif source >= 0:
                now = max(now, ends[source, k] + at.delay[B, c])
            if first != UNSTARTED:
                cost = max(cost, now + (at.size[c] - k) * at.least[2, c] - first)
            now += at.least[1, c]
            ends[c, k] = now
    return cost
