"""Messages between ranks, and when each is planned.

Wherever an op's input is made on another rank, its activation (or the gradient that comes back) is
a message; weights and their gradients are messages as the schedule's transfers say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeloom.ir.cost.dependency_graph import EdgeKind, ScheduleGraph
from pipeloom.ir.cost.overlap import pair_starts
from pipeloom.ir.cost.remat import passed
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.program import Tensor, TensorKind
from pipeloom.ir.model.schedule import Schedule, Timing, TransferKind
from pipeloom.ir.model.transfers import previous

_KINDS = {TransferKind.WEIGHT: TensorKind.WEIGHT, TransferKind.GRADIENT: TensorKind.GRADIENT}


@dataclass(frozen=True, slots=True)
class Message:
    """One tensor on its way from ``source`` to ``target``.

    It leaves once the first ``after`` ops of the source are done and ``earlier``, the message that
    brought it there (an index, None where it is made there), has come. Its receive is posted once
    the first ``room`` ops of the target are done. The op of the target at position ``before``
    waits for it, the op of the source at ``blocks`` until it has left. ``leaves`` and ``arrives``
    are planned times.
    """

    tensor: Tensor
    source: int
    target: int
    after: int
    before: int
    room: int
    leaves: float
    arrives: float
    blocks: int | None = None
    earlier: int | None = None

    @property
    def activation(self) -> bool:
        """Whether it is of activations, which are made by an op; else of weights."""
        return self.tensor.kind in (TensorKind.X, TensorKind.DY)

    @property
    def own(self) -> bool:
        """Whether it is sent from the owner's weights, not from a buffer."""
        return self.tensor.kind is TensorKind.WEIGHT and self.earlier is None


def messages(schedule: Schedule, slack: int) -> list[Message]:
    """The messages of a timed schedule: its transfers, in their order, then the activations.

    The receive of an activation is posted ``slack`` ops before the last moment that keeps its
    send from waiting: the end of the last op of its rank that ends strictly before it leaves.
    """
    timing = schedule.timing
    assert timing is not None, "compute() times the schedule"
    return [*_transfers(schedule, timing), *_activations(schedule, timing, slack)]


def carried(schedule: Schedule) -> list[Tensor]:
    """The name of what each transfer carries."""
    return [Tensor(_KINDS[t.kind], t.stage, x) for x, t in enumerate(schedule.transfers)]


def taken_on(schedule: Schedule) -> dict[Tensor, Tensor]:
    """For each transfer but the first of its item, what brought the item to where it leaves."""
    names = carried(schedule)
    return {
        name: names[earlier]
        for name, earlier in zip(names, previous(schedule.transfers), strict=True)
        if earlier is not None
    }


def _transfers(schedule: Schedule, timing: Timing) -> Iterator[Message]:
    before, times = previous(schedule.transfers), timing.transfers.tolist()
    for x, (t, tensor) in enumerate(zip(schedule.transfers, carried(schedule), strict=True)):
        leaves, arrives = times[x]
        waits = t.after, t.before, t.room
        yield Message(tensor, t.source, t.target, *waits, leaves, arrives, t.blocks, before[x])


def _activations(schedule: Schedule, timing: Timing, slack: int) -> Iterator[Message]:
    """In the order of the ops that make them."""
    graph, ops, ends = ScheduleGraph.of(schedule), np.concatenate(schedule.order), timing.end
    past = [passed(schedule, rank) for rank in range(schedule.problem.ranks)]
    paired = set(pair_starts(schedule).tolist())
    for made, used, delay in sorted(zip(*graph.edges[EdgeKind.ACTIVATION], strict=True)):
        op = Op.unpack(int(ops[used]))
        source, target = graph.ranks[[made, used]].tolist()
        kind = TensorKind.X if op.kind is OpKind.F else TensorKind.DY
        i, before = int(made - graph.offsets[source]), int(used - graph.offsets[target])
        before -= used - 1 in paired  # both ops of a pair start together
        leaves = float(ends[source][i])
        room = max(0, int(np.searchsorted(past[target], leaves)) - slack)
        times = leaves, leaves + float(delay)
        tensor = Tensor(kind, op.stage, op.microbatch)
        yield Message(tensor, source, target, i + 1, before, room, *times)
