"""All messages between ranks, and the positions of their sends, receives and waits among the ops.

If an op's input is computed on another rank, this activation, or gradient of an activation, is a
message. Each of the schedule's transfers of weights and their gradients is a message, too.

The sends, receives and waits of all ranks follow one order of all events (:class:`EventOrder`): the
send and the receive of a message are placed at its departure, its waits at its arrival or later. So
ranks cannot deadlock. Afterwards, sends and receives that never block are moved ahead of waits,
which delays no rank.
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
    """The n messages of a timed schedule, as arrays of shape (n,).

    First are the schedule's transfers, as listed; then its activations and their gradients, in the
    order of the ops that compute them.

    ``routes``: source, target and constraints. A message leaves when the first ``after`` ops of its
    source are done and the message ``earlier``, which brought the tensor to the source, has arrived
    (-1 if the tensor does not come from another rank). The receive of the message is posted when
    the first ``room`` ops of its target are done. The target's op at position ``before`` waits for
    the message; the source's op at position ``blocks`` waits until the message has left.
    ``leaves``, ``arrives``: planned times in ms. ``own``: whether the message is the first transfer
    of a copy of weights. ``used``: the packed ops that need the activations or their gradients;
    transfers have no entry.
    """

    routes: MessageTable
    earlier: IntArray
    leaves: FloatArray
    arrives: FloatArray
    own: npt.NDArray[np.bool_]
    used: IntArray

    @classmethod
    def of(cls, schedule: Schedule, slack: int) -> Messages:
        """The messages of ``schedule``, which must have a timing.

        The send of an activation does not wait for its receive if the receive is posted no later
        than at the end of the target's last op that ends strictly before the message leaves. The
        receive is posted ``slack`` ops earlier than that.
        """
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
        """The number of messages, n."""
        return len(self.leaves)

    @property
    def transfers(self) -> int:
        """The number of transfers, which are the first messages."""
        return self.count - len(self.used)


def counts_before(
    rows: Sequence[FloatArray] | Sequence[IntArray],
    rank: IntArray,
    values: FloatArray | IntArray,
    side: Literal["left", "right"] = "left",
) -> IntArray:
    """For each i, the number of entries of ``rows[rank[i]]`` that are below ``values[i]``, (n,).

    ``rows``: for each rank, an ascending array. ``rank``, ``values``: n ranks, and a value for
    each, (n,). With ``side`` "right", entries that equal ``values[i]`` are counted, too.
    """
    found, by_rank = np.zeros(len(rank), dtype=np.int64), np.argsort(rank, kind="stable")
    ends = np.cumsum(np.bincount(rank, minlength=len(rows)))
    for row, mine in zip(rows, np.split(by_rank, ends[:-1]), strict=True):
        found[mine] = np.searchsorted(row, values[mine], side)
    return found


SLACK = 1
"""Number of ops by which receives are posted earlier than necessary, and sends from the first rank
of a tensor earlier than planned."""
BoolArray = npt.NDArray[np.bool_]


class Post(IntEnum):
    """The four instructions of a message: SEND and WAIT_SEND on its source, two on its target."""

    RECEIVE = 0
    SEND = 1
    WAIT_SEND = 2
    WAIT_RECEIVE = 3


@dataclass(frozen=True, slots=True, eq=False)
class PlacedMessages:
    """The sends, receives and waits of n messages, placed between the ops of their ranks.

    Each is an entry: the instruction ``post`` (:class:`Post`) for ``message``, on ``rank``, after
    the rank's first ``boundary`` ops. The arrays, (4n,) each, list the entries of rank 0 in the
    order of its program, then those of rank 1, and so on. The rules for their places are:

    ========== ======================== =====================================================
    \\          activations              weights and their gradients
    ========== ======================== =====================================================
    send       after the op that        on the tensor's first rank: ``slack`` ops before the op
               computes them            during which it is planned to leave, as it may wait for
                                        other ranks; on later ranks: when planned
    receive    ``slack`` ops before the when the schedule has room for it
               latest possible position
    wait for   after the first op that  before the first op planned to start after its arrival,
    send       ends after their arrival such as an op that it blocks; for the owner's weights
                                        that block no op: after the last op
    wait for   before the op that       before the first op that needs it, or the send that
    receive    needs them               passes it on
    ========== ======================== =====================================================

    The receives of a channel (all messages from one rank to another) are in the order of its sends.
    With ``slack`` 1, a rank can be up to one op later than planned without delaying others. If the
    time of every op varies by 20 %, slack 0 makes steps up to 2.3 % longer (more if messages take
    longer); slack 1 costs nothing except a few more buffers (``benchmarks/overhead``).
    """

    messages: Messages
    rank: IntArray
    boundary: IntArray
    post: IntArray
    message: IntArray

    @classmethod
    def of(cls, schedule: Schedule, slack: int) -> PlacedMessages:
        """Place the messages of ``schedule``, which must have a timing."""
        messages = Messages.of(schedule, slack)
        plan, routes, each = EventOrder.of(schedule, messages), messages.routes, messages.count
        posted = np.argsort(plan.leaves)
        channel = routes.source * len(schedule.order) + routes.target
        sent = _rising(_sent(schedule, messages, plan, slack), channel, posted)
        awaited, place = _awaited(messages, plan)
        room, gone = _rising(routes.room, channel, posted), _gone(schedule, messages, plan)
        entries = (
            np.concatenate([routes.target, routes.source, routes.source, routes.target]),
            np.concatenate([room, sent, gone, awaited]),
            np.repeat(np.array(Post), each),
            np.tile(np.arange(each), len(Post)),
        )
        places = np.concatenate([plan.leaves, plan.leaves, plan.arrives, place])
        at = cls(messages, *entries)._arranged(places)
        return cls(messages, *(part[at] for part in entries))

    def _arranged(self, place: FloatArray) -> IntArray:
        """The permutation that puts the entries into the order of the program, (4n,).

        ``place``: the entries' places in the event order. Entries are sorted by rank, boundary and
        place. Then, within each boundary, entries that never block are moved ahead:

        - First come the receives of weights and gradients that need not wait until a buffer is
          free. A posted receive notifies the peer; with Gloo, this notice uses the same connection
          as data, and would arrive after all data that was sent before it.
        - Next are the sends that need not wait for a receive, as far as the order of their channel
          allows.
        - Each other receive is moved ahead of the waits for receives, but stays behind the last
          wait for a send before it that frees a buffer.
        """
        at = np.lexsort((self.message, place, self.boundary, self.rank))
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
        """For each entry in ``at``, whether it is a send that waits for nothing at its boundary.

        ``at``: indices of entries, in order. ``group``: a number for each of them, which is the
        same for entries with the same rank and boundary.
        """
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


def _rising(boundaries: IntArray, channel: IntArray, posted: IntArray) -> IntArray:
    """The ``boundaries`` of n messages, raised so that they never decrease within a channel, (n,).

    ``channel``: the number of each message's channel, (n,). ``posted``: the messages in the order
    in which they are posted, (n,).
    """
    by_channel = posted[np.argsort(channel[posted], kind="stable")]
    lift = channel[by_channel] * (boundaries.max(initial=0) + 1)
    risen = np.empty_like(boundaries)
    risen[by_channel] = np.maximum.accumulate(boundaries[by_channel] + lift) - lift
    return risen


def _sent(schedule: Schedule, messages: Messages, plan: EventOrder, slack: int) -> IntArray:
    """The boundary at which the source posts the send of each message, (n,).

    ``slack``: the number of ops by which first transfers of weights or gradients leave earlier than
    planned. The order of sends in a channel is not yet ensured (:func:`_rising`).
    """
    timing, source = schedule.timing, messages.routes.source
    assert timing is not None
    boundary = plan.boundary(source, plan.leaves)
    ended = counts_before(timing.end, source, messages.leaves, "right") - slack
    early = np.minimum(boundary, np.maximum(messages.routes.after, ended))
    sets_out = (np.arange(messages.count) < messages.transfers) & (messages.earlier < 0)
    return np.where(sets_out, early, boundary)


def _gone(schedule: Schedule, messages: Messages, plan: EventOrder) -> IntArray:
    """The boundary at which the source waits until the send of each message has ended, (n,)."""
    source, transfers = messages.routes.source, messages.transfers
    past = [passed(schedule, rank) for rank in range(len(schedule.order))]
    count = np.diff(offsets_of(schedule.order))[source]
    boundary = plan.boundary(source, plan.arrives)
    ended = counts_before(past, source, messages.arrives) + 1
    late = np.minimum(np.maximum(boundary, ended), count)
    boundary[transfers:] = late[transfers:]
    # the owner's weights are not in a receive buffer that could be freed
    return np.where(messages.own & (messages.routes.blocks == NEVER), count, boundary)


def _awaited(messages: Messages, plan: EventOrder) -> tuple[IntArray, FloatArray]:
    """The boundary at which the target waits for each message, and this wait's place, (n,) each.

    If the target sends the tensor on before one of its ops needs it, the place is directly before
    this send in the event order. For all other waits, it is infinite.
    """
    boundary, place = messages.routes.before.copy(), np.full(messages.count, np.inf)
    onward = np.flatnonzero(messages.earlier >= 0)
    brought = messages.earlier[onward]
    leaves = plan.leaves[onward]
    sent = plan.boundary(messages.routes.source[onward], leaves)
    sooner = sent <= boundary[brought]
    boundary[brought[sooner]] = sent[sooner]
    # half a place: directly before the send
    place[brought[sooner]] = leaves[sooner] - 0.5
    return boundary, place


def _so_far(flags: BoolArray, group: IntArray) -> BoolArray:
    """For each of n entries, whether its flag or an earlier one of its group is set, (n,).

    ``flags``: the flag of each entry, (n,). ``group``: the number of each entry's group, ascending,
    (n,).
    """
    last = np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))
    found: BoolArray = last >= np.searchsorted(group, group)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class EventOrder:
    """One order of all ops, departures and arrivals, in which each event follows its causes.

    The values are places, positions in this order. ``ops[r][i]``: the place of the start of rank
    r's i-th op. ``leaves[x]``, ``arrives[x]``: the places of message x's departure and arrival.
    Events are sorted by planned time; of events at the same time, messages come before ops unless
    they depend on these ops.
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
        """For each i, the number of ops of ``rank[i]`` that are before ``place[i]`` in the order,
        (n,).

        ``rank``, ``place``: n ranks, and a position in the event order for each, (n,).
        """
        return counts_before(self.ops, rank, place)


def _successors(messages: Messages, offsets: IntArray) -> Successors:
    """The edges between the events, for a topological order.

    The nodes are the ops, rank after rank, then the departure and the arrival of each message.
    """
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
    ops: int,  # number of nodes that are ops; they come first
    first: IntArray,  # (N + 1,) where each node's edges begin
    to: IntArray,  # (E,) node that each edge leads to
    missing: IntArray,  # (N,) in: edges into each node; out: zeros
) -> IntArray:
    """The place of each node in a topological order, (N,).

    Of the nodes whose predecessors are placed, the one with the earliest time is next; of equal
    times, ops come last.
    """
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
