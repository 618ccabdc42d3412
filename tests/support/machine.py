"""A machine that runs programs with symbols for tensors, its ranks advancing in random order.

Nothing of the compiler or the runtime: rendezvous semantics as ``docs/program.md`` states them. A
message is carried once its send and its receive and those of all earlier messages of its channel
are posted; a buffer holds garbage from the posting of a receive until then.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

from pipeloom.ir import (
    Compute,
    Free,
    Instruction,
    Op,
    OpKind,
    Program,
    Receive,
    Reduce,
    Relay,
    Send,
    Step,
    Tensor,
    TensorKind,
    WaitReceive,
    WaitSend,
)


class DeadlockError(Exception):
    """No rank can go on."""


class Machine:
    """Runs ``program``; what goes wrong is an AssertionError, or a DeadlockError."""

    def __init__(self, program: Program) -> None:
        self.program = program
        ranks = range(len(program.instructions))
        self.at = [0 for _ in ranks]
        self.content: list[dict[int, Tensor | None]] = [{} for _ in ranks]  # of taken buffers
        self.place: list[dict[Tensor, int]] = [{} for _ in ranks]
        self.made: list[set[Tensor]] = [set() for _ in ranks]
        self.ran: list[set[Op]] = [set() for _ in ranks]
        self.sent: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        self.asked: dict[tuple[int, int], list[tuple[Tensor, int]]] = defaultdict(list)
        self.carried: dict[tuple[int, int], int] = defaultdict(int)
        self.left: list[set[Tensor]] = [set() for _ in ranks]
        self.came: list[set[Tensor]] = [set() for _ in ranks]
        self.reduced: list[list[Reduce]] = [[] for _ in ranks]
        self.stepped: list[list[int]] = [[] for _ in ranks]

    def run(self, random: Random) -> None:
        rows = self.program.instructions
        while unfinished := [r for r, row in enumerate(rows) if self.at[r] < len(row)]:
            able = [r for r in unfinished if self.can(r, rows[r][self.at[r]])]
            if not able:
                raise DeadlockError([str(rows[r][self.at[r]]) for r in unfinished])
            rank = random.choice(able)
            self.do(rank, rows[rank][self.at[rank]])
            self.at[rank] += 1

    def can(self, rank: int, item: Instruction) -> bool:
        if isinstance(item, WaitReceive):
            return item.tensor in self.came[rank]
        if isinstance(item, WaitSend):
            return item.tensor in self.left[rank]
        if isinstance(item, Reduce):
            return all(
                item in row[: self.at[r] + 1]
                for r, row in enumerate(self.program.instructions)
                if item in row
            )
        if isinstance(item, Relay) and item.source is not None:
            done = self.program.instructions[item.source][: self.at[item.source]]
            return any(isinstance(i, Relay) and i.kind is item.kind for i in done)
        return True

    def do(self, rank: int, item: Instruction) -> None:
        match item:
            case Compute(op):
                self.compute(rank, op)
            case Receive(tensor, source, buffer):
                assert buffer not in self.content[rank], f"{item}: the buffer is taken"
                named = self.program.buffers[rank][buffer]
                assert (named.kind, named.stage) == (tensor.kind, tensor.stage)
                self.content[rank][buffer] = None
                self.place[rank][tensor] = buffer
                self.asked[source, rank].append((tensor, buffer))
                self.carry(source, rank)
            case Send(tensor, target):
                assert tensor in self.made[rank], f"{item}: not there"
                self.sent[rank, target].append(tensor)
                self.carry(rank, target)
            case Free(tensor):
                del self.content[rank][self.place[rank].pop(tensor)]
            case Reduce():
                self.reduced[rank].append(item)
            case Step(stage):
                self.stepped[rank].append(stage)

    def carry(self, source: int, target: int) -> None:
        channel = source, target
        while self.carried[channel] < min(len(self.sent[channel]), len(self.asked[channel])):
            sent = self.sent[channel][self.carried[channel]]
            asked, buffer = self.asked[channel][self.carried[channel]]
            self.content[target][buffer] = sent
            self.left[source].add(sent)
            self.came[target].add(asked)
            self.carried[channel] += 1

    def compute(self, rank: int, op: Op) -> None:
        s, j = op.stage, op.microbatch
        x, dy = Tensor(TensorKind.X, s, j), Tensor(TensorKind.DY, s, j)
        if s > 0:
            self.read(rank, x)
        if op.kind is not OpKind.F and s + 1 < self.program.schedule.problem.stages:
            self.read(rank, dy)
        self.ran[rank].add(op)
        if op.kind is OpKind.F:
            self.made[rank].add(Tensor(TensorKind.X, s + 1, j))
        elif op.kind is not OpKind.W:
            self.made[rank].add(Tensor(TensorKind.DY, s - 1, j))

    def read(self, rank: int, tensor: Tensor) -> None:
        if tensor in self.made[rank]:
            return
        buffer = self.place[rank].get(tensor)
        assert buffer is not None, f"rank {rank}: {tensor} is read where it is not held"
        assert self.content[rank][buffer] == tensor, f"rank {rank}: {tensor} is overwritten"
        assert tensor in self.came[rank]
