"""The machine for programs whose weights travel: who has which weights, what each D has collected.

Semantics as ``docs/weight-passing.md`` states them: a weight gradient is added to the D of its
stage that is there, else kept until one leaves; a D that comes takes over what was kept.
"""

from __future__ import annotations

from collections import defaultdict

from pipeloom.ir.ops import Op, OpKind
from pipeloom.ir.program import (
    Compute,
    Free,
    Instruction,
    Program,
    Receive,
    Send,
    Step,
    Tensor,
    TensorKind,
    WaitReceive,
    WaitSend,
)
from pipeloom.ir.travel import journeys, owners, previous
from tests.machine import Machine

Sum = frozenset[int]  # the microbatches that a gradient has collected


class WeightMachine(Machine):
    """Runs a program with travelling weights; what goes wrong is an AssertionError."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        schedule = program.schedule
        ranks, transfers = range(schedule.problem.ranks), schedule.transfers
        self.owners = owners(schedule)
        self.earlier = {
            x: None if e is None else Tensor(_kind(transfers[e].kind.value), transfers[e].stage, e)
            for x, e in enumerate(previous(transfers))
        }
        self.last = {journey[-1] for journey in journeys(transfers).values()}
        self.home: dict[int, Sum] = defaultdict(Sum)  # what has come to each stage's owner
        self.kept: list[dict[int, Sum]] = [defaultdict(Sum) for _ in ranks]  # by stage
        self.sums: dict[Tensor, Sum] = {}  # of each D on its way
        self.here: list[dict[int, Tensor]] = [{} for _ in ranks]  # the D of each stage
        self.leaving: list[set[Tensor]] = [set() for _ in ranks]
        self.total: dict[int, Sum] = {}

    def do(self, rank: int, item: Instruction) -> None:
        match item:
            case Compute(op):
                self.compute(rank, op)
            case Receive(tensor, source, buffer):
                assert buffer not in self.content[rank], f"{item}: the buffer is taken"
                assert self.program.buffers[rank][buffer].kind is tensor.kind
                self.content[rank][buffer] = None
                self.place[rank][tensor] = buffer
                self.asked[source, rank].append((tensor, buffer))
                self.carry(source, rank)
            case Send(tensor, target):
                self.leave(rank, tensor)
                self.sent[rank, target].append(tensor)
                self.carry(rank, target)
            case WaitReceive(tensor):
                self.arrive(rank, tensor)
            case WaitSend(tensor):
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
        self.ran[rank].add(op)
        if op.kind in (OpKind.W, OpKind.BW):
            self.add(rank, op.stage, Sum([op.microbatch]))

    def has_weights(self, rank: int, stage: int) -> bool:
        held = (t for t in self.place[rank] if t.kind is TensorKind.WEIGHT and t.stage == stage)
        return rank == self.owners[stage] or any(t in self.came[rank] for t in held)

    def add(self, rank: int, stage: int, new: Sum) -> None:
        here = self.here[rank].get(stage)
        old = self.kept[rank][stage] if here is None else self.sums[here]
        assert not old & new, f"rank {rank}: {new} counted twice on stage {stage}"
        if here is None:
            self.kept[rank][stage] = old | new
        else:
            self.sums[here] = old | new

    def leave(self, rank: int, tensor: Tensor) -> None:
        earlier = self.earlier[tensor.index]
        self.leaving[rank].add(tensor)
        if tensor.kind is TensorKind.WEIGHT:
            assert (
                rank == self.owners[tensor.stage] if earlier is None else self.held(rank, earlier)
            )
            return
        if earlier is None:
            self.sums[tensor] = self.kept[rank].pop(tensor.stage, Sum())
            return
        assert self.here[rank].pop(tensor.stage) == earlier
        self.sums[tensor] = self.sums.pop(earlier)

    def held(self, rank: int, tensor: Tensor) -> bool:
        return tensor in self.came[rank] and tensor in self.place[rank]

    def arrive(self, rank: int, tensor: Tensor) -> None:
        if tensor.kind is TensorKind.GRADIENT and tensor.index in self.last:
            new = self.sums.pop(tensor)
            assert not new & self.home[tensor.stage], f"{tensor} was counted before"
            self.home[tensor.stage] |= new
        elif tensor.kind is TensorKind.GRADIENT:
            assert tensor.stage not in self.here[rank]
            self.here[rank][tensor.stage] = tensor
            self.add(rank, tensor.stage, self.kept[rank].pop(tensor.stage, Sum()))

    def step(self, rank: int, stage: int) -> None:
        assert rank == self.owners[stage]
        own = self.kept[rank][stage]
        assert not own & self.home[stage]
        self.total[stage] = own | self.home[stage]
        self.stepped[rank].append(stage)
        for tensor in self.leaving[rank]:
            mine = tensor.kind is TensorKind.WEIGHT and self.earlier[tensor.index] is None
            assert not (mine and tensor.stage == stage), f"{tensor} leaves while it is stepped"


def _kind(name: str) -> TensorKind:
    return TensorKind.WEIGHT if name == "weight" else TensorKind.GRADIENT
