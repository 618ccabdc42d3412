"""Messages between ranks, and when each is planned.

Wherever an op's input is made on another rank, its activation (or the gradient that comes back) is
a message; weights and their gradients are messages as the schedule's transfers say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...model.ops import FloatArray, IntArray
from ...model.schedule import Schedule, TransferKind, once
from ...model.transfers import earlier_ones
from ..dependency_graph import NEVER, EdgeKind, MessageTable, ScheduleGraph
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
