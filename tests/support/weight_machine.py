"""The machine for whatever travels: who has which weights, what each D has collected.

Semantics as ``docs/weight-passing.md`` states them: what a rank adds to a stage's gradient leaves
with the next D of that stage to leave the rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    Compute,
    Free,
    Instruction,
    Op,
    OpKind,
    Program,
    Receive,
    Schedule,
    Send,
    Step,
    Tensor,
    TensorKind,
    WaitReceive,
    WaitSend,
    footprint,
    holders,
    journeys,
    owned,
    previous,
)
from tests.support.machine import Machine
from tests.support.program_footprint import passing_of

Sum = frozenset[int]  # the microbatches that a gradient has collected


class WeightMachine(Machine):
    """Runs a program with travelling weights; what goes wrong is an AssertionError."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        schedule = program.schedule
        ranks, transfers = range(schedule.problem.ranks), schedule.transfers
        self.holders = holders(schedule)
        self.earlier = {
            x: None if e is None else Tensor(_kind(transfers[e].kind.value), transfers[e].stage, e)
            for x, e in enumerate(previous(transfers))
        }
        self.last = {journey[-1] for journey in journeys(transfers).values()}
        self.home: dict[int, Sum] = defaultdict(Sum)  # what has come to each stage's owner
        self.kept: list[dict[int, Sum]] = [defaultdict(Sum) for _ in ranks]  # by stage
        self.sums: dict[Tensor, Sum] = {}  # of each D on its way
        self.leaving: list[set[Tensor]] = [set() for _ in ranks]
        self.total: dict[int, Sum] = {}

    def do(self, rank: int, item: Instruction) -> None:
        match item:
            case Compute(op):
                self.compute(rank, op)
            case Receive(tensor, source, buffer):
                if not travels(tensor):
                    super().do(rank, item)
                    return
                assert buffer not in self.content[rank], f"{item}: the buffer is taken"
                assert self.program.buffers[rank][buffer].kind is tensor.kind
                self.content[rank][buffer] = None
                self.place[rank][tensor] = buffer
                self.asked[source, rank].append((tensor, buffer))
                self.carry(source, rank)
            case Send(tensor, target) if travels(tensor):
                self.leave(rank, tensor)
                self.sent[rank, target].append(tensor)
                self.carry(rank, target)
            case WaitReceive(tensor):
                self.arrive(rank, tensor)
            case WaitSend(tensor) if travels(tensor):
                self.leaving[rank].remove(tensor)
            case Free(tensor):
                for other in self.leaving[rank]:
                    assert self.earlier[other.index] != tensor, f"{item}: {other} is leaving"
                super().do(rank, item)
            case Step(stage):
                self.step(rank, stage)
            case _:
                super().do(rank, item)

    def compute(self, rank: int, op: Op) -> None:
        if op.kind is not OpKind.W:
            assert self.has_weights(rank, op.stage), f"rank {rank}: {op} without weights"
        super().compute(rank, op)
        if op.kind in (OpKind.W, OpKind.BW):
            self.add(rank, op.stage, Sum([op.microbatch]))

    def has_weights(self, rank: int, stage: int) -> bool:
        held = (t for t in self.place[rank] if t.kind is TensorKind.WEIGHT and t.stage == stage)
        return rank in self.holders[stage] or any(t in self.came[rank] for t in held)

    def add(self, rank: int, stage: int, new: Sum) -> None:
        old = self.kept[rank][stage]
        assert not old & new, f"rank {rank}: {new} counted twice on stage {stage}"
        self.kept[rank][stage] = old | new

    def leave(self, rank: int, tensor: Tensor) -> None:
        earlier = self.earlier[tensor.index]
        self.leaving[rank].add(tensor)
        if earlier is not None:
            assert self.held(rank, earlier), f"{tensor} leaves before it has come"
        if tensor.kind is TensorKind.WEIGHT:
            assert earlier is not None or rank in self.holders[tensor.stage]
            return
        carried = Sum() if earlier is None else self.sums.pop(earlier)
        new = self.kept[rank].pop(tensor.stage, Sum())
        assert not carried & new, f"{tensor} counts {carried & new} twice"
        self.sums[tensor] = carried | new

    def held(self, rank: int, tensor: Tensor) -> bool:
        return tensor in self.came[rank] and tensor in self.place[rank]

    def arrive(self, rank: int, tensor: Tensor) -> None:
        if tensor.kind is TensorKind.GRADIENT and tensor.index in self.last:
            new = self.sums.pop(tensor)
            assert not new & self.home[tensor.stage], f"{tensor} was counted before"
            self.home[tensor.stage] |= new

    def step(self, rank: int, stage: int) -> None:
        homes = self.holders[stage]
        assert rank in homes
        summed = [item.stages for item in self.reduced[rank]]
        assert (stage,) in summed or len(homes) == 1, f"stage {stage}: its replicas never meet"
        total = self.home[stage]
        for home in homes:
            own = self.kept[home][stage]
            assert not own & total
            total |= own
        assert self.total.setdefault(stage, total) == total, f"stage {stage}: replicas differ"
        self.stepped[rank].append(stage)
        for tensor in self.leaving[rank]:
            mine = tensor.kind is TensorKind.WEIGHT and self.earlier[tensor.index] is None
            assert not (mine and tensor.stage == stage), f"{tensor} leaves while it is stepped"


def run_compiled(
    schedule: Schedule, seed: int = 0, tied: Sequence[Sequence[int]] = ()
) -> WeightMachine:
    """The machine after the program of ``schedule`` has run: with the memory that is planned, every
    op and step done, every gradient collected once, and nothing left behind."""
    program = compile_schedule(schedule, tied=tied)
    assert footprint(schedule).passing == passing_of(program)
    machine = WeightMachine(program)
    machine.run(Random(seed))
    everything = frozenset(range(schedule.problem.microbatches))
    assert machine.total == dict.fromkeys(range(schedule.problem.stages), everything)
    for rank, mine in enumerate(owned(schedule)):
        assert machine.ran[rank] == set(schedule.ops(rank))
        assert machine.stepped[rank] == list(mine)
        assert not machine.content[rank], "buffers left taken"
        assert not machine.leaving[rank], "sends not waited for"
    return machine


def travels(tensor: Tensor) -> bool:
    """Whether it goes where the schedule's transfers say, not from op to op."""
    return tensor.kind in (TensorKind.WEIGHT, TensorKind.GRADIENT)


def _kind(name: str) -> TensorKind:
    return TensorKind.WEIGHT if name == "weight" else TensorKind.GRADIENT
