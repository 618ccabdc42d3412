"""Memory for weights and gradients that are sent, as in the compiled program.

Receive buffers are taken and freed, and gradient sums kept, in the order of the program's sends,
receives, waits and ops (:mod:`.placed_messages`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...model.ops import KIND_MASK, STAGE_MASK, STAGE_SHIFT, OpKind
from ...model.schedule import Schedule, Transfer, TransferKind
from ...model.transfers import previous, size
from .placed_messages import SLACK, PlacedMessages, Post

Entry: TypeAlias = tuple[Post | None, int]
"""A send, receive or wait, and the index of its transfer; or None, and a packed op."""


def passing_memory(schedule: Schedule, homes: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """The peak memory that each rank needs for stages that it does not own, (P,).

    It is the sum of three sizes: the receive buffers; the weights of one stage during its ops; and
    either that stage's gradient or the gradient sums that wait to be added to a D
    (:mod:`...model.transfers`) or to be sent, whichever is larger. ``schedule`` must have a timing.
    ``homes``: the stages that each rank owns.
    """
    profile, transfers = schedule.problem.profile, schedule.transfers
    stages = range(profile.num_stages)
    sizes = {kind: [size(profile, kind, s) for s in stages] for kind in TransferKind}
    earlier = previous(transfers)
    return tuple(
        _RankMemory(transfers, earlier, sizes, frozenset(mine), row).memory
        for mine, row in zip(homes, _rows(schedule), strict=True)
    )


def _rows(schedule: Schedule) -> list[list[Entry]]:
    """For each rank, its ops and the sends, receives and waits of transfers, in program order."""
    placed = PlacedMessages.of(schedule, SLACK)
    messages, counts = placed.messages, [len(row) for row in schedule.order]
    posts: defaultdict[tuple[int, int], list[Entry]] = defaultdict(list)
    entries = (placed.rank, placed.boundary, placed.post, placed.message)
    for rank, boundary, post, x in zip(*(part.tolist() for part in entries), strict=True):
        if x < messages.transfers:
            # waits for sends after the last op come last, but those for the owner's weights before
            last = post == Post.WAIT_SEND and boundary == counts[rank] and not messages.own[x]
            posts[rank, boundary + last].append((Post(post), x))
    return [
        [
            *posts[rank, 0],
            *(e for i, op in enumerate(row.tolist(), 1) for e in ((None, op), *posts[rank, i])),
            *posts[rank, len(row) + 1],
        ]
        for rank, row in enumerate(schedule.order)
    ]


@dataclass(frozen=True, slots=True)
class _RankMemory:
    """The calculation of one rank's memory for stages that it does not own (:attr:`memory`).

    ``transfers``: all transfers of the schedule. ``earlier``: for each transfer, the index of the
    previous transfer of the same copy of weights or the same gradient. ``sizes``: the bytes of
    each stage's weights and gradient. ``mine``: the stages that the rank owns. ``row``: the rank's
    ops and the starts and ends of its messages, in program order.
    """

    transfers: Sequence[Transfer]
    earlier: Sequence[int | None]
    sizes: dict[TransferKind, list[float]]
    mine: frozenset[int]
    row: list[Entry]

    @property
    def memory(self) -> float:
        foreign = {_stage(op) for post, op in self.row if post is None} - self.mine
        weights, gradient = (
            max((self.sizes[kind][s] for s in foreign), default=0.0) for kind in TransferKind
        )
        return self._buffers() + weights + max(gradient, self._sums())

    def _last_uses(self) -> dict[int, list[int]]:
        """For each position in ``row``, the transfers whose receive buffers are used last there.

        The last use of a buffer is the last of: the wait for its receive, the wait for the send
        that passes the tensor on, and the last op that uses the weights in it. An op uses the
        weights of its stage that arrived last.
        """
        last: dict[int, int] = {}
        here: dict[int, int] = {}  # by stage: the weights that arrived last
        for at, (post, x) in enumerate(self.row):
            if post == Post.WAIT_RECEIVE:
                last[x] = at
                if self.transfers[x].kind is TransferKind.WEIGHT:
                    here[self.transfers[x].stage] = x
            elif post == Post.WAIT_SEND and (brought := self.earlier[x]) is not None:
                last[brought] = at
            elif post is None and x & KIND_MASK != OpKind.W and _stage(x) in here:
                last[here[_stage(x)]] = at
        found: defaultdict[int, list[int]] = defaultdict(list)
        for x, at in last.items():
            found[at].append(x)
        return found

    def _buffers(self) -> float:
        """The total size of the receive buffers.

        There are buffers for weights and buffers for gradients. A buffer is used for several
        stages, and is as large as the largest of them needs. Of the free buffers, the one that was
        freed last is taken first.
        """
        weights, made = self.sizes[TransferKind.WEIGHT], list[tuple[TransferKind, int]]()
        idle: dict[TransferKind, list[int]] = {kind: [] for kind in TransferKind}
        taken: dict[int, int] = {}
        freed = self._last_uses()
        for at, (post, x) in enumerate(self.row):
            if post == Post.RECEIVE:
                kind, stage = self.transfers[x].kind, self.transfers[x].stage
                if not idle[kind]:
                    idle[kind].append(len(made))
                    made.append((kind, stage))
                buffer = taken[x] = idle[kind].pop()
                if weights[stage] > weights[made[buffer][1]]:
                    made[buffer] = kind, stage
            for done in freed.get(at, ()):
                idle[self.transfers[done].kind].append(taken.pop(done))
        return sum(self.sizes[kind][stage] for kind, stage in made)

    def _sums(self) -> float:
        """The peak of the total size of the gradient sums that are not in the buffer of a D.

        Such a sum exists from the first op that adds to a stage's gradient while no D of the stage
        is on the rank, until a D arrives, to which the sum is then added. If a D starts on this
        rank, the sum itself is sent as the D, and exists until its send has ended.
        """
        sizes = self.sizes[TransferKind.GRADIENT]
        kept, here = set[int](), set[int]()  # stages with a sum, with a D here
        now = most = 0.0
        for post, x in self.row:
            if post is None:
                stage = _stage(x)
                if x & KIND_MASK != OpKind.F and stage not in kept | here | self.mine:
                    kept.add(stage)
                    now += sizes[stage]
            elif self.transfers[x].kind is TransferKind.GRADIENT and post != Post.RECEIVE:
                stage, own = self.transfers[x].stage, self.earlier[x] is None
                if post == Post.WAIT_SEND:
                    now -= sizes[stage] if own else 0.0
                    continue
                if stage in kept:
                    kept.remove(stage)
                    now -= sizes[stage]
                if post == Post.WAIT_RECEIVE:
                    here.add(stage)
                else:
                    here.discard(stage)
                    now += sizes[stage] if own else 0.0
            most = max(most, now)
        return most


def _stage(op: int) -> int:
    return op >> STAGE_SHIFT & STAGE_MASK
