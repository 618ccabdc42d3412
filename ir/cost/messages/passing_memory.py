"""Memory for weights and gradients that are sent, as in the compiled program.

Buffers are taken and freed, and gradient sums kept, in the order of :mod:`.placed_messages`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from ...model.ops import IntArray, OpKind, fields_of, offsets_of
from ...model.schedule import Schedule, Transfer, TransferKind
from ...model.transfers import size
from ..dependency_graph import NEVER
from .placed_messages import SLACK, Messages, PlacedMessages, Post

Sizes: TypeAlias = dict[TransferKind, list[float]]
Event: TypeAlias = tuple[int, int]
"""A :class:`What`, and the transfer or stage that it happens to."""


class What(IntEnum):
    """Events on a rank that concern a transfer, or the gradient of a stage."""

    TAKES = 0  # the transfer takes a receive buffer
    FREES = 1  # it gives the buffer back
    COMES = 2  # a gradient arrives
    GOES_ON = 3  # a gradient that arrived here is sent on
    SETS_OUT = 4  # a gradient is sent from its first rank
    HAS_LEFT = 5  # the send of a gradient from its first rank has ended
    ADDS = 6  # an op adds to its stage's gradient


MOVES = (What.COMES, What.GOES_ON, What.SETS_OUT)


def passing_memory(schedule: Schedule, homes: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Peak memory of streamed stages on each rank, (P,), in addition to the stages that it owns.

    The sum of the receive buffers, of the weights of one more stage during its ops, and of the
    larger of that stage's gradient and all gradient sums that wait for a D or for being sent.
    ``schedule`` is timed; ``homes``: the stages that each rank owns.
    """
    profile, transfers, found = schedule.problem.profile, schedule.transfers, []
    sizes = {k: [size(profile, k, s) for s in range(schedule.problem.stages)] for k in TransferKind}
    for rank, events in enumerate(_events(schedule)):
        mine = frozenset(homes[rank])
        foreign = set(fields_of(schedule.order[rank])[1].tolist()) - mine
        weights, gradient = (max((sizes[k][s] for s in foreign), default=0.0) for k in TransferKind)
        sums = _sums(events, transfers, mine, sizes[TransferKind.GRADIENT])
        found.append(_buffers(events, transfers, sizes) + weights + max(gradient, sums))
    return tuple(found)


def _buffers(events: Iterable[Event], transfers: Sequence[Transfer], sizes: Sizes) -> float:
    """The total size of the receive buffers.

    A buffer serves all stages of its kind and is as large as the largest of them. The buffer that
    was freed last is taken first.
    """
    weights, made = sizes[TransferKind.WEIGHT], list[tuple[TransferKind, int]]()
    idle: dict[TransferKind, list[int]] = {kind: [] for kind in TransferKind}
    taken: dict[int, int] = {}
    for what, x in events:
        if what == What.FREES:
            idle[transfers[x].kind].append(taken.pop(x))
        elif what == What.TAKES:
            kind, stage = transfers[x].kind, transfers[x].stage
            if not idle[kind]:
                idle[kind].append(len(made))
                made.append((kind, stage))
            at = taken[x] = idle[kind].pop()
            if weights[stage] > weights[made[at][1]]:
                made[at] = kind, stage
    return sum(sizes[kind][stage] for kind, stage in made)


def _sums(
    events: Iterable[Event],
    transfers: Sequence[Transfer],
    mine: frozenset[int],
    sizes: Sequence[float],
) -> float:
    """The peak size of the gradient sums on a rank that are not in the buffer of a D.

    A sum exists from the first op that adds to a stage's gradient while no D of the stage is on the
    rank, until a D arrives and takes it over. A D that starts on this rank is the sum itself.
    """
    kept, here = set[int](), set[int]()  # here: stages with a D on this rank
    now = most = 0.0
    for what, number in events:
        stage = number if what == What.ADDS else transfers[number].stage
        if what == What.ADDS and not (stage in kept or stage in here or stage in mine):
            kept.add(stage)
            now += sizes[stage]
        if what in MOVES and stage in kept:
            kept.remove(stage)
            now -= sizes[stage]
        if what == What.COMES:
            here.add(stage)
        elif what in MOVES:
            here.discard(stage)
        if what == What.SETS_OUT:
            now += sizes[stage]
        elif what == What.HAS_LEFT:
            now -= sizes[stage]
        most = max(most, now)
    return most


def _events(schedule: Schedule) -> list[list[Event]]:
    """The events of each rank, in order."""
    placed, offsets = PlacedMessages.of(schedule, SLACK), offsets_of(schedule.order)
    messages, count = placed.messages, placed.messages.transfers
    ops, posts = _places(placed, offsets)
    kinds, stages, _ = fields_of(np.concatenate(schedule.order))
    ranks, adds = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), kinds != OpKind.F
    source, target, every = messages.routes.source, messages.routes.target, np.arange(count)
    carries = np.array([t.kind is TransferKind.GRADIENT for t in schedule.transfers])
    goes_on = messages.earlier[:count] >= 0
    gradients, made = np.flatnonzero(carries), np.flatnonzero(carries & ~goes_on)
    freed, onward = _last_uses(schedule, messages, ops, posts), np.flatnonzero(carries & goes_on)

    def events(what: What, rank: IntArray, place: IntArray, which: IntArray) -> list[IntArray]:
        return [np.full(len(which), what), rank[which], place[which], which]

    found = [
        events(What.TAKES, target, posts[Post.RECEIVE], every),
        events(What.FREES, target, freed, every),
        events(What.COMES, target, posts[Post.WAIT_RECEIVE], gradients),
        events(What.GOES_ON, source, posts[Post.SEND], onward),
        events(What.SETS_OUT, source, posts[Post.SEND], made),
        events(What.HAS_LEFT, source, posts[Post.WAIT_SEND], made),
        [np.full(adds.sum(), What.ADDS), ranks[adds], ops[adds], stages[adds]],
    ]
    what, rank, place, number = map(np.concatenate, zip(*found, strict=True))
    by = np.lexsort((place, rank))
    ends = np.searchsorted(rank[by], np.arange(len(offsets))).tolist()
    rows = list(zip(what[by].tolist(), number[by].tolist(), strict=True))
    return [rows[first:last] for first, last in pairwise(ends)]


def _places(placed: PlacedMessages, offsets: IntArray) -> tuple[IntArray, IntArray]:
    """The positions of all ops, (N,), and of each :class:`Post` of each transfer, (4, T).

    Positions on one rank ascend as in its program.
    """
    rank, boundary, messages = placed.rank, placed.boundary, placed.messages
    counts = np.diff(offsets)
    at = np.arange(len(rank)) + offsets[rank] + boundary
    ops = np.arange(offsets[-1])
    ranks = np.repeat(np.arange(len(counts)), counts)
    ops += np.searchsorted(offsets[rank] + rank + boundary, ops + ranks, "right")
    # the final waits for sends come last, except those for the owner's weights
    drained = (placed.post == Post.WAIT_SEND) & (boundary == counts[rank])
    at[drained & ~messages.own[placed.message]] += len(rank) + len(ops)
    posts = np.empty((len(Post), messages.count), dtype=np.int64)
    posts[placed.post, placed.message] = at
    return ops, posts[:, : messages.transfers]


def _last_uses(schedule: Schedule, messages: Messages, ops: IntArray, posts: IntArray) -> IntArray:
    """The position of the last use of each transfer's buffer, (T,).

    This is the latest of: the wait for its receive, the wait for the send that passes it on, and
    the last op that uses these weights. An op uses the weights that arrived last.
    """
    last: IntArray = posts[Post.WAIT_RECEIVE].copy()
    onward = np.flatnonzero(messages.earlier >= 0)
    brought = messages.earlier[onward]
    last[brought] = np.maximum(last[brought], posts[Post.WAIT_SEND, onward])
    kinds, stages, _ = fields_of(np.concatenate(schedule.order))
    uses, number = np.flatnonzero(kinds != OpKind.W), schedule.problem.stages
    offsets = offsets_of(schedule.order)
    ranks = np.repeat(np.arange(len(schedule.order)), np.diff(offsets))
    span = int(max(posts.max(), ops.max(initial=0))) + 1
    used = np.sort((ranks * number + stages)[uses] * span + ops[uses])
    brings = [
        (x, t.stage) for x, t in enumerate(schedule.transfers) if t.kind is TransferKind.WEIGHT
    ]
    weights, stage = np.array(brings, dtype=np.int64).reshape(-1, 2).T
    key = messages.routes.target[weights] * number + stage
    came = key * span + posts[Post.WAIT_RECEIVE, weights]
    by_time = np.argsort(came)
    weights, came = weights[by_time], came[by_time]
    until = np.minimum(np.append(came[1:], NEVER)[: len(came)], (came // span + 1) * span)
    at = np.searchsorted(used, until) - 1
    serves = (at >= 0) & (used[at] > came)
    last[weights[serves]] = np.maximum(last[weights[serves]], used[at[serves]] % span)
    return last
