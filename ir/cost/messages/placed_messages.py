"""Sends, receives and waits of all messages, as they stand between the ops of their ranks.

All ranks' entries follow one order of all that happens on all of them (:class:`EventOrder`): the
send and the receive of a message stand where it leaves, its waits where it arrives or later. So
no two ranks can wait for each other, whatever is sent. What never blocks is then brought forward
past waits, which takes nothing away from any rank.

Messages between ranks, and when each is planned.

Wherever an op's input is made on another rank, its activation (or the gradient that comes back) is
a message; weights and their gradients are messages as the schedule's transfers say.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...kernels import kernel
from ...model.ops import FloatArray, IntArray, offsets_of
from ...model.schedule import Schedule, TransferKind, once
from ...model.transfers import earlier_ones
from ..dependency_graph import NEVER, EdgeKind, MessageTable, ScheduleGraph, Successors, undelayed
from ..overlap import pair_starts
from ..remat import passed


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The messages of a timed schedule, (n,) each: its transfers, as listed, then the activations
    in the order of the ops that make them.

    A message leaves once the first ``after`` ops of the source are done and ``earlier``, the
    message that brought it there (-1 where it is made there), has come. Its receive is posted once
    the first ``room`` ops of the target are done. The op of the target at position ``before``
    waits for it, the op of the source at ``blocks`` until it has left. ``leaves`` and ``arrives``
    are planned times. ``used``: of the activations, the packed ops that need them.
    """

    routes: MessageTable
    earlier: IntArray
    leaves: FloatArray
    arrives: FloatArray
    own: npt.NDArray[np.bool_]
    used: IntArray

    @classmethod
    def of(cls, schedule: Schedule, slack: int) -> Messages:
        """The receive of an activation is posted ``slack`` ops before the last moment that keeps
        its send from waiting: the end of the last op of its rank that ends strictly before it
        leaves."""
        timing, graph = schedule.timing, ScheduleGraph.of(schedule)
        assert timing is not None, "the schedule is timed"
        made, used, delay = graph.edges[EdgeKind.ACTIVATION]
        by_op = np.lexsort((used, made))
        made, used, delay = made[by_op], used[by_op], delay[by_op]
        source, target = graph.ranks[made], graph.ranks[used]
        leaves = np.concatenate(timing.end)[made]
        past = [passed(schedule, rank) for rank in range(schedule.problem.ranks)]
        room = np.maximum(0, counts_before(past, target, leaves) - slack)
        # both ops of a pair start together
        before = used - graph.offsets[target] - np.isin(used - 1, pair_starts(schedule))
        after, never = made - graph.offsets[source] + 1, np.full(len(made), NEVER)
        routes = zip(graph.routes, (source, target, after, room, before, never), strict=True)
        earlier = once(schedule.transfers, earlier_ones)
        weights = [t.kind is TransferKind.WEIGHT for t in schedule.transfers]
        own = (earlier < 0) & np.array(weights, dtype=np.bool_)
        return cls(
            MessageTable(*map(np.concatenate, routes)),
            np.concatenate([earlier, np.full(len(made), -1)]),
            np.concatenate([timing.transfers[:, 0], leaves]),
            np.concatenate([timing.transfers[:, 1], leaves + delay]),
            np.concatenate([own, np.zeros(len(made), np.bool_)]),
            np.concatenate(schedule.order)[used],
        )

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.leaves)

    @property
    def transfers(self) -> int:
        """How many of them, the first, are the schedule's transfers."""
        return self.count - len(self.used)


def counts_before(
    rows: Sequence[FloatArray] | Sequence[IntArray],
    rank: IntArray,
    values: FloatArray | IntArray,
    side: Literal["left", "right"] = "left",
) -> IntArray:
    """The count of numbers of its rank's row, which rise, before each of ``values``, (n,);
    with ``side`` right, those equal to it too."""
    found, by_rank = np.zeros(len(rank), dtype=np.int64), np.argsort(rank, kind="stable")
    ends = np.cumsum(np.bincount(rank, minlength=len(rows)))
    for row, mine in zip(rows, np.split(by_rank, ends[:-1]), strict=True):
        found[mine] = np.searchsorted(row, values[mine], side)
    return found


SLACK = 1
"""Ops by which a rank sends earlier than planned what sets out from it, and receives earlier."""
BoolArray = npt.NDArray[np.bool_]


class Post(IntEnum):
    """The four things that ranks do for a message."""

    RECEIVE = 0
    SEND = 1
    WAIT_SEND = 2
    WAIT_RECEIVE = 3


@dataclass(frozen=True, slots=True, eq=False)
class PlacedMessages:
    """Entries, (4n,) each, rank after rank, as it comes to them: each is ``post`` (:class:`Post`)
    of ``message`` on ``rank``, once its first ``boundary`` ops are done. ``posted``: the messages
    in the order in which they leave, (n,).

    ========== ======================== =====================================================
    \\          activations              weights and their gradients
    ========== ======================== =====================================================
    send       after the op that made   of what sets out here: ``slack`` ops before the op in
               them                     which it is planned to leave, for what it waits for may
                                        be elsewhere; of the others: when it is planned to
    receive    ``slack`` ops before it  where the schedule has room for it
               is needed at the latest
    wait for   at the end of the first  before the first op planned to start after it has
    the send   op that ends after it    arrived, which an op that it blocks does; of the
               has arrived              owner's weights that block none: after the last op
    wait for   before the op that       before the first op that needs it, or the send that
    it         needs it                 takes it on
    ========== ======================== =====================================================

    Receives of a channel are in the order of its sends. ``slack`` 1 lets a rank be up to an op
    later than planned: where every op's time varies by 20 %, slack 0 costs up to 2.3 % (more, the
    longer messages take), slack 1 nothing and some buffers more (``benchmarks/overhead``).
    """

    messages: Messages
    posted: IntArray
    rank: IntArray
    boundary: IntArray
    post: IntArray
    message: IntArray

    @classmethod
    def of(cls, schedule: Schedule, slack: int) -> PlacedMessages:
        """The messages of a timed schedule, placed."""
        messages = Messages.of(schedule, slack)
        plan, routes, each = EventOrder.of(schedule, messages), messages.routes, messages.count
        posted = np.argsort(plan.leaves)
        channel = routes.source * len(schedule.order) + routes.target
        sent = _rising(_sent(schedule, messages, plan, slack), channel, posted)
        awaited, place = _awaited(messages, plan)
        room, gone = _rising(routes.room, channel, posted), _gone(schedule, messages, plan)
        entries = _Entries(
            messages,
            np.concatenate([routes.target, routes.source, routes.source, routes.target]),
            np.concatenate([room, sent, gone, awaited]),
            np.concatenate([plan.leaves, plan.leaves, plan.arrives, place]),
            np.repeat(np.array(Post), each),
            np.tile(np.arange(each), len(Post)),
        )
        at = entries.arranged()
        return cls(
            messages, posted, entries.rank[at], entries.boundary[at], entries.post[at],
            entries.message[at],
        )  # fmt: skip


def _rising(boundaries: IntArray, channel: IntArray, posted: IntArray) -> IntArray:
    """Each message's boundary, or that of one before it in its channel, if that is later."""
    by_channel = posted[np.argsort(channel[posted], kind="stable")]
    lift = channel[by_channel] * (boundaries.max(initial=0) + 1)
    risen = np.empty_like(boundaries)
    risen[by_channel] = np.maximum.accumulate(boundaries[by_channel] + lift) - lift
    return risen


def _sent(schedule: Schedule, messages: Messages, plan: EventOrder, slack: int) -> IntArray:
    """The boundary at which the source posts the send, if its channel is free then."""
    timing, source = schedule.timing, messages.routes.source
    assert timing is not None
    boundary = plan.boundary(source, plan.leaves)
    ended = counts_before(timing.end, source, messages.leaves, "right") - slack
    early = np.minimum(boundary, np.maximum(messages.routes.after, ended))
    sets_out = (np.arange(messages.count) < messages.transfers) & (messages.earlier < 0)
    return np.where(sets_out, early, boundary)


def _gone(schedule: Schedule, messages: Messages, plan: EventOrder) -> IntArray:
    """The boundary at which the source makes sure that it has left."""
    source, transfers = messages.routes.source, messages.transfers
    past = [passed(schedule, rank) for rank in range(len(schedule.order))]
    count = np.diff(offsets_of(schedule.order))[source]
    boundary = plan.boundary(source, plan.arrives)
    ended = counts_before(past, source, messages.arrives) + 1
    late = np.minimum(np.maximum(boundary, ended), count)
    boundary[transfers:] = late[transfers:]
    # the owner's weights take no buffer that could be given back
    return np.where(messages.own & (messages.routes.blocks == NEVER), count, boundary)


def _awaited(messages: Messages, plan: EventOrder) -> tuple[IntArray, FloatArray]:
    """The boundary and the place of the wait for each message."""
    boundary, place = messages.routes.before.copy(), np.full(messages.count, np.inf)
    onward = np.flatnonzero(messages.earlier >= 0)
    brought = messages.earlier[onward]
    leaves = plan.leaves[onward]
    sent = plan.boundary(messages.routes.source[onward], leaves)
    sooner = sent <= boundary[brought]
    boundary[brought[sooner]] = sent[sooner]
    # half a place: after all that comes before the send, before the send itself
    place[brought[sooner]] = leaves[sooner] - 0.5
    return boundary, place


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Entries as in :class:`PlacedMessages`, in any order, with their place in the event order."""

    messages: Messages
    rank: IntArray
    boundary: IntArray
    place: FloatArray
    post: IntArray
    message: IntArray

    def arranged(self) -> IntArray:
        """The entries in the order in which ranks come to them, of one boundary those that never
        block as early as they may be.

        First the receives of weights and gradients that need no wait: that they are posted is news
        to the peer, which on Gloo goes the way of the data and would come after all that is sent
        before. Then the sends that need none, as far as their channel's order allows; then the
        waits for sends with the other receives, each right after the last of those before it that
        gives back a buffer it may take, and before all waits for receives.
        """
        at = np.lexsort((self.message, self.place, self.boundary, self.rank))
        post, heavy = self.post[at], self.message[at] < self.messages.transfers
        changes = (np.diff(self.boundary[at]) != 0) | (np.diff(self.rank[at]) != 0)
        group = np.concatenate([np.zeros(1, np.int64), np.cumsum(changes)])[: len(at)]
        ready = self._ready_sends(at, group)
        receives, gives_back = post == Post.RECEIVE, (post == Post.WAIT_SEND) & heavy
        kind = np.where(gives_back, 0, np.where(receives, 1, 2))
        by = np.lexsort((kind, np.cumsum(gives_back), ready, group))
        first = ~_so_far(~(receives & heavy)[by], group[by])
        stage = np.where(first, 0, np.where(ready[by], 1, 2))
        return at[by[np.lexsort((stage, group[by]))]]

    def _ready_sends(self, at: IntArray, group: IntArray) -> BoolArray:
        """The sends among the entries ``at``, by boundary, that no wait there holds up."""
        post, message = self.post[at], self.message[at]
        sends, routes = post == Post.SEND, self.messages.routes
        waited = _so_far(post == Post.WAIT_RECEIVE, group)
        holds_up = sends & waited & (self.messages.earlier[message] >= 0)
        channel = group * (routes.target.max(initial=0) + 1) + routes.target[message]
        by_channel = np.argsort(channel, kind="stable")
        held_up: BoolArray = np.zeros(len(at), dtype=np.bool_)
        held_up[by_channel] = _so_far(holds_up[by_channel], channel[by_channel])
        ready: BoolArray = sends & ~held_up
        return ready


def _so_far(flags: BoolArray, group: IntArray) -> BoolArray:
    """Whether any of ``flags`` up to each entry is set in its group; groups follow each other."""
    last = np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))
    found: BoolArray = last >= np.searchsorted(group, group)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class EventOrder:
    """Places in one order of all ops, departures and arrivals, in which each follows its causes.

    ``ops[r][i]``: of the start of rank r's i-th op; ``leaves[x]``, ``arrives[x]``: of message x.
    The order is by planned time; at one time messages come before ops, as far as they do not
    wait for them.
    """

    ops: tuple[IntArray, ...]
    leaves: IntArray
    arrives: IntArray

    @classmethod
    def of(cls, schedule: Schedule, messages: Messages) -> EventOrder:
        """The order of a timed schedule's ops and messages."""
        timing, offsets = schedule.timing, offsets_of(schedule.order)
        assert timing is not None, "the schedule is timed"
        moments = np.stack([messages.leaves, messages.arrives], axis=1).ravel()
        times = np.concatenate([*timing.start, moments])
        first, to, _, missing = _successors(messages, offsets)
        place, ops = _in_order(times, int(offsets[-1]), first, to, missing), int(offsets[-1])
        return cls(tuple(np.split(place[:ops], offsets[1:-1])), place[ops::2], place[ops + 1 :: 2])

    def boundary(self, rank: IntArray, place: IntArray) -> IntArray:
        """How many ops of each ``rank`` come before ``place``, (n,)."""
        return counts_before(self.ops, rank, place)


def _successors(messages: Messages, offsets: IntArray) -> Successors:
    """Edges from each op (numbered rank after rank), then from each departure and arrival."""
    ops, later = int(offsets[-1]), np.flatnonzero(messages.earlier >= 0)
    leaves = ops + 2 * np.arange(messages.count)
    behind = np.setdiff1d(np.arange(1, ops), offsets)
    edges = [
        undelayed(behind - 1, behind),
        undelayed(leaves, leaves + 1),
        undelayed(leaves[messages.earlier[later]] + 1, leaves[later]),
        *messages.routes.edges(offsets, leaves, leaves + 1).values(),
    ]
    return Successors.of(edges, ops + 2 * messages.count)


@kernel
def _in_order(
    times: FloatArray,  # (N,)
    ops: int,  # of the nodes, the first
    first: IntArray,  # (N + 1,) where each node's edges begin
    to: IntArray,  # (E,) node that each edge leads to
    missing: IntArray,  # (N,) edges into each node; zeros afterwards
) -> IntArray:
    """The place of each node in an order by time, of nodes that are no ops first."""
    ready = [(times[n], int(n < ops), n) for n in range(len(times)) if missing[n] == 0]
    heapq.heapify(ready)
    place = np.zeros(len(times), dtype=np.int64)
    at = 0
    while len(ready) > 0:
        node = heapq.heappop(ready)[2]
        place[node] = at
        at += 1
        for edge in range(first[node], first[node + 1]):
            other = to[edge]
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, (times[other], int(other < ops), other))
    return place
