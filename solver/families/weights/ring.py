"""Families in which microbatches stay on ranks, and weights move round a ring of ranks.

Rank r runs all stages of microbatches r, P + r, 2P + r, ..., whose activations never leave it. Time
is divided into *turns*. In turn t, rank r is in *phase* t - r: all ranks do the same, each one turn
after the previous rank. A family defines in which phases the k-th microbatch of a rank runs which
ops. If several ops are in one turn, those of the earlier microbatch go first.

Stage s is owned by rank s, which keeps its weights and optimizer state. Three *items* of each stage
move round the ring: a copy of the weights for the F's, a copy for the B's, and D, the accumulator
of the gradient. A copy goes from the owner to rank 0 for its first use, and then to the next rank
in every turn, whether it is used there or not, until the turn of its last use. D begins on rank 0
with its first use, moves in the same way, and is then sent to the owner, from the last rank that
added to it. A family must place its ops such that each item is where it is used: the phases of all
uses of an item are equal mod P.

A rank passes an item on when it has finished its turn. It has buffers for the items of the next
turn before the last op of the current turn. Ops wait for the items that they use. So all
dependencies between ranks lead from one turn to the next. Without delays, the makespan is at most
the sum over the turns of the largest work of any rank in the turn.

M is arbitrary: if P does not divide it, some ranks have one microbatch fewer; if M < P, some have
none.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter

from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from pipeloom.ir.units import counted

from ..base import RoundRobinFamily, finished


class RingFamily(RoundRobinFamily):
    @abstractmethod
    def phases(self, ranks: int, k: int) -> Iterator[tuple[int, OpKind, int]]:
        """Yield the phase, kind and stage of each op of a rank's microbatch number ``k``.

        A rank numbers its microbatches from 0. A phase is a turn (a step of the whole ring) minus
        the rank, so it is the same on all ranks. ``ranks``: P.
        """

    def supports(self, problem: Problem) -> str | None:
        if problem.stages != problem.ranks:
            return (
                f"needs as many stages as ranks, not {counted(problem.stages, 'stage')} on "
                f"{counted(problem.ranks, 'rank')}"
            )
        return super().supports(problem)

    def schedule(self, problem: Problem) -> Schedule:
        turns = self.turns(problem.ranks, problem.microbatches)
        order = [[op for _, op in row] for row in turns.rows]
        return finished(problem, order, self.name, transfers=_transfers(turns))

    def turns(self, ranks: int, microbatches: int) -> Turns:
        return Turns([list(self._row(rank, ranks, microbatches)) for rank in range(ranks)])

    def _row(self, rank: int, ranks: int, microbatches: int) -> Iterator[tuple[int, Op]]:
        own = range(rank, microbatches, ranks)
        found = [
            (phase, k, kind, stage)
            for k in range(len(own))
            for phase, kind, stage in self.phases(ranks, k)
        ]
        for phase, k, kind, stage in sorted(found, key=lambda one: one[:2]):
            yield rank + phase, Op(kind, stage, own[k])


class Turns:
    """A schedule in turns: the turn (step of the whole ring) in which each op runs.

    ``rows[r]``: the pairs (turn, op) of rank r in order.
    """

    def __init__(self, rows: list[list[tuple[int, Op]]]) -> None:
        self.rows = rows
        self._turn = [[turn for turn, _ in row] for row in rows]

    @property
    def ranks(self) -> int:
        return len(self.rows)

    def done(self, rank: int, turn: int) -> int:
        """Return how many ops ``rank`` has run by the end of ``turn``."""
        return bisect_right(self._turn[rank], turn)

    def room(self, rank: int, turn: int) -> int:
        """Return how many ops ``rank`` must have run to receive the items sent after ``turn``.

        Items are copies of weights and gradient accumulators. Their buffers are free before the
        rank's last op in ``turn``.
        """
        return max(self.done(rank, turn - 1), self.done(rank, turn) - 1)


_Use = tuple[int, int, int]
"""The turn, the rank and the position in the rank's order of an op that uses an item."""
# the items of a stage: kind of transfer, copy, kinds of ops that use it
_ITEMS = (
    (TransferKind.WEIGHT, 0, (OpKind.F,)),
    (TransferKind.WEIGHT, 1, (OpKind.B, OpKind.BW)),
    (TransferKind.GRADIENT, 0, (OpKind.W, OpKind.BW)),
)


def _transfers(turns: Turns) -> tuple[Transfer, ...]:
    """Return all transfers, sorted by the turn after which each of them happens.

    The result is empty if there is only one rank.
    """
    if turns.ranks == 1:
        return ()
    uses = _uses(turns)
    ways: list[tuple[int, Transfer]] = []
    for stage in range(turns.ranks):
        for kind, copy, served in _ITEMS:
            found = sorted((use for op in served for use in uses[stage, op]), key=itemgetter(0))
            ways += _journey(turns, kind, stage, copy, found)
    return tuple(transfer for _, transfer in sorted(ways, key=lambda leg: leg[0]))


def _uses(turns: Turns) -> dict[tuple[int, OpKind], list[_Use]]:
    found: dict[tuple[int, OpKind], list[_Use]] = defaultdict(list)
    for rank, row in enumerate(turns.rows):
        for i, (turn, op) in enumerate(row):
            found[op.stage, op.kind].append((turn, rank, i))
    return found


def _journey(
    turns: Turns, kind: TransferKind, stage: int, copy: int, uses: list[_Use]
) -> Iterator[tuple[int, Transfer]]:
    """Yield the transfers of one item, each in a pair (turn after which it happens, transfer).

    ``kind``: whether the item is a copy of the weights of ``stage`` or the accumulator of its
    gradient. ``copy``: the number of the copy, 0 for the F's and 1 for the B's; 0 for an
    accumulator. ``uses``: the ops that use the item, in the order of their turns.
    """
    first, last = uses[0][0], uses[-1][0]
    needed = {(turn, rank): position for turn, rank, position in uses}
    ranks = [(turn - first) % turns.ranks for turn in range(first, last + 1)]
    turn = first
    if kind is TransferKind.WEIGHT and stage != ranks[0]:
        ranks.insert(0, stage)  # from the owner
        turn -= 1
    if kind is TransferKind.GRADIENT and stage != ranks[-1]:
        ranks.append(stage)  # back to the owner
    for source, target in pairwise(ranks):
        # the owner has the weights from the start
        after = 0 if turn < first else turns.done(source, turn)
        before = needed.get((turn + 1, target), len(turns.rows[target]))
        room = turns.room(target, turn)
        yield turn, Transfer(kind, stage, copy, source, target, after, before, room)
        turn += 1
