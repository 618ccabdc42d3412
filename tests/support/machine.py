"""A machine that runs programs with symbols as tensors; its ranks advance in random order.

It shares no code with the compiler and the runtime. Messages have rendezvous semantics as in
``docs/program.md``: a message is transferred when its send, its receive, and those of all earlier
messages of its channel are posted. From the post of a receive until then, its buffer holds garbage.
Which rank has which weights, and what each weight gradient (D) contains, follows
``docs/weight-passing.md``: what a rank adds to the gradient of a stage is included in the next D of
that stage that leaves the rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from pipeloom.compiler import compile_schedule, footprint
from pipeloom.ir import (
    Compute,
    Free,
    Instruction,
    Op,
    OpKind,
    Profile,
    Program,
    Receive,
    Reduce,
    Relay,
    Schedule,
    Send,
    Step,
    Tensor,
    TensorKind,
    TransferKind,
    WaitReceive,
    WaitSend,
    holders,
    journeys,
    owned,
    previous,
)

KINDS = {TensorKind.WEIGHT: TransferKind.WEIGHT, TensorKind.GRADIENT: TransferKind.GRADIENT}
"""Kinds of tensors whose route is given by the schedule's transfers, not by its ops."""
Sum = frozenset[int]  # the microbatches whose gradients are in a sum


class DeadlockError(Exception):
    """No rank can continue."""


class Machine:
    """Runs ``program``; errors raise AssertionError or DeadlockError."""

    def __init__(self, program: Program) -> None:
        self.program = program
        ranks, transfers = range(len(program.instructions)), program.schedule.transfers
        self.at = [0 for _ in ranks]
        self.content: list[dict[int, Tensor | None]] = [{} for _ in ranks]  # of buffers in use
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
        self.holders = holders(program.schedule)
        kinds = {kind.value: of_tensor for of_tensor, kind in KINDS.items()}
        self.earlier = {
            x: None if e is None else Tensor(kinds[transfers[e].kind.value], transfers[e].stage, e)
            for x, e in enumerate(previous(transfers))
        }
        self.last = {journey[-1] for journey in journeys(transfers).values()}
        self.home: dict[int, Sum] = defaultdict(Sum)  # what each stage's owner has received
        self.kept: list[dict[int, Sum]] = [defaultdict(Sum) for _ in ranks]  # by stage
        self.sums: dict[Tensor, Sum] = {}  # of each D that is being passed
        self.leaving: list[set[Tensor]] = [set() for _ in ranks]
        self.total: dict[int, Sum] = {}

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
            case Receive():
                self.receive(rank, item)
            case Send(tensor, target):
                self.leave(rank, tensor)
                self.sent[rank, target].append(tensor)
                self.carry(rank, target)
            case WaitReceive(tensor):
                self.arrive(tensor)
            case WaitSend(tensor) if tensor.kind in KINDS:
                self.leaving[rank].remove(tensor)
            case Free(tensor):
                for other in self.leaving[rank]:
                    assert self.earlier[other.index] != tensor, f"{item}: {other} is leaving"
                del self.content[rank][self.place[rank].pop(tensor)]
            case Reduce():
                self.reduced[rank].append(item)
            case Step(stage):
                self.step(rank, stage)

    def receive(self, rank: int, item: Receive) -> None:
        assert item.buffer not in self.content[rank], f"{item}: the buffer is taken"
        named = self.program.buffers[rank][item.buffer]
        assert named.kind is item.tensor.kind
        assert named.kind in KINDS or named.stage == item.tensor.stage
        self.content[rank][item.buffer] = None
        self.place[rank][item.tensor] = item.buffer
        self.asked[item.source, rank].append((item.tensor, item.buffer))
        self.carry(item.source, rank)

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
        if op.kind is not OpKind.W:
            assert self.has_weights(rank, s), f"rank {rank}: {op} without weights"
        if s > 0:
            self.read(rank, Tensor(TensorKind.X, s, j))
        if op.kind is not OpKind.F and s + 1 < self.program.schedule.problem.stages:
            self.read(rank, Tensor(TensorKind.DY, s, j))
        self.ran[rank].add(op)
        if op.kind is OpKind.F:
            self.made[rank].add(Tensor(TensorKind.X, s + 1, j))
        elif op.kind is not OpKind.W:
            self.made[rank].add(Tensor(TensorKind.DY, s - 1, j))
        if op.kind in (OpKind.W, OpKind.BW):
            old = self.kept[rank][s]
            assert j not in old, f"rank {rank}: {j} counted twice on stage {s}"
            self.kept[rank][s] = old | {j}

    def read(self, rank: int, tensor: Tensor) -> None:
        if tensor in self.made[rank]:
            return
        buffer = self.place[rank].get(tensor)
        assert buffer is not None, f"rank {rank}: {tensor} is read where it is not held"
        assert self.content[rank][buffer] == tensor, f"rank {rank}: {tensor} is overwritten"
        assert tensor in self.came[rank]

    def has_weights(self, rank: int, stage: int) -> bool:
        held = (t for t in self.place[rank] if t.kind is TensorKind.WEIGHT and t.stage == stage)
        return rank in self.holders[stage] or any(t in self.came[rank] for t in held)

    def leave(self, rank: int, tensor: Tensor) -> None:
        if tensor.kind not in KINDS:
            assert tensor in self.made[rank], f"rank {rank}: {tensor} is not there"
            return
        earlier = self.earlier[tensor.index]
        self.leaving[rank].add(tensor)
        if earlier is not None:
            there = earlier in self.came[rank] and earlier in self.place[rank]
            assert there, f"{tensor} leaves before it has come"
        if tensor.kind is TensorKind.WEIGHT:
            assert earlier is not None or rank in self.holders[tensor.stage]
            return
        carried = Sum() if earlier is None else self.sums.pop(earlier)
        new = self.kept[rank].pop(tensor.stage, Sum())
        assert not carried & new, f"{tensor} counts {carried & new} twice"
        self.sums[tensor] = carried | new

    def arrive(self, tensor: Tensor) -> None:
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


def run_compiled(schedule: Schedule, seed: int = 0, tied: Sequence[Sequence[int]] = ()) -> Machine:
    """Run the program of ``schedule``, and check the final state; returns the machine.

    The program uses the planned memory. All ops and steps are done, each gradient is collected once
    and reduced if required, and all buffers are free.
    """
    program = compile_schedule(schedule, tied=tied)
    assert footprint(schedule).passing == passing_of(program)
    machine = Machine(program)
    machine.run(Random(seed))
    assert machine.total == dict.fromkeys(
        range(schedule.problem.stages), Sum(range(schedule.problem.microbatches))
    )
    replicated = {(s,) for s, ranks in enumerate(machine.holders) if len(ranks) > 1}
    due = sorted({*replicated, *(tuple(sorted(group)) for group in tied)})
    for rank, mine in enumerate(owned(schedule)):
        assert machine.ran[rank] == set(schedule.ops(rank))
        assert machine.stepped[rank] == list(mine)
        reduced = [item.stages for item in machine.reduced[rank]]
        assert reduced == [group for group in due if set(group) & set(mine)]
        assert not machine.content[rank], "buffers left taken"
        assert not machine.leaving[rank], "sends not waited for"
    return machine


# The memory of programs for passing weights and gradients, like ``footprint`` for schedules -------


def passing_of(program: Program) -> tuple[float, ...]:
    """For each rank, the size of receive buffers, weights of a running stage, and gradient sums."""
    schedule, profile, found = program.schedule, program.schedule.problem.profile, []
    for rank, mine in enumerate(map(set, owned(schedule))):
        buffers = sum(
            size(profile, KINDS[buffer.kind], buffer.stage)
            for buffer in program.buffers[rank]
            if buffer.kind in KINDS
        )
        foreign = {op.stage for op in schedule.ops(rank)} - mine if schedule.transfers else set()
        weights, gradient = (
            max((size(profile, kind, s) for s in foreign), default=0.0) for kind in TransferKind
        )
        found.append(buffers + weights + max(gradient, _kept(program, rank, mine)))
    return tuple(found)


def size(profile: Profile, kind: TransferKind, stage: int) -> float:
    """Bytes of a stage's weights or gradient, which has their size if its own is unknown."""
    one = profile.stages[stage]
    known = one.grad_bytes if kind is TransferKind.GRADIENT else None
    return (one.weight_bytes or 0.0) if known is None else known


def _kept(program: Program, rank: int, mine: set[int]) -> float:
    """The peak size of the rank's gradient sums that are not in the buffer of a D."""
    schedule, most = program.schedule, 0.0
    earlier = previous(schedule.transfers)
    kept: set[int] = set()
    leaving: set[Tensor] = set()
    here: set[int] = set()  # stages whose D is on this rank
    for item in program.instructions[rank]:
        match item:
            case Compute(op) if op.kind is not OpKind.F and op.stage not in mine | here:
                kept.add(op.stage)
            case WaitReceive(Tensor(TensorKind.GRADIENT, stage)) if stage not in mine:
                kept.discard(stage)
                here.add(stage)
            case Send(Tensor(TensorKind.GRADIENT, stage, index) as tensor):
                kept.discard(stage)
                here.discard(stage)
                if earlier[index] is None:
                    leaving.add(tensor)
            case WaitSend(tensor):
                leaving.discard(tensor)
        sums = [*kept, *(tensor.stage for tensor in leaving)]
        gradient = TransferKind.GRADIENT
        most = max(most, sum(size(schedule.problem.profile, gradient, s) for s in sums))
    return most
