"""What each rank of a program holds for weights and gradients on their way, instruction by
instruction: what :func:`pipeloom.ir.cost.memory_footprint.footprint` says of its schedule."""

from __future__ import annotations

from collections.abc import Sequence

from pipeloom.ir import (
    Compute,
    OpKind,
    Program,
    Send,
    Tensor,
    TensorKind,
    TransferKind,
    WaitReceive,
    WaitSend,
    owned,
    previous,
)
from pipeloom.ir.model.transfers import size

_KINDS = {TensorKind.WEIGHT: TransferKind.WEIGHT, TensorKind.GRADIENT: TransferKind.GRADIENT}


def passing_of(program: Program) -> tuple[float, ...]:
    """Receive buffers, a stage at work, sums of gradients; one number per rank."""
    earlier = previous(program.schedule.transfers)
    homes = enumerate(map(set, owned(program.schedule)))
    return tuple(_of_rank(program, rank, mine, earlier) for rank, mine in homes)


def _of_rank(program: Program, rank: int, mine: set[int], earlier: Sequence[int | None]) -> float:
    schedule, profile = program.schedule, program.schedule.problem.profile
    buffers = sum(
        size(profile, _KINDS[buffer.kind], buffer.stage)
        for buffer in program.buffers[rank]
        if buffer.kind in _KINDS
    )
    foreign = {op.stage for op in schedule.ops(rank)} - mine if schedule.transfers else set()
    weights, gradient = (
        max((size(profile, kind, s) for s in foreign), default=0.0) for kind in TransferKind
    )
    return buffers + weights + max(gradient, _kept(program, rank, mine, earlier))


def _kept(program: Program, rank: int, mine: set[int], earlier: Sequence[int | None]) -> float:
    """The most that the rank keeps, at one time, of sums that are not in a D's buffer."""
    kept: set[int] = set()
    leaving: set[Tensor] = set()
    here: set[int] = set()  # stages whose D is
    most = 0.0
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
        profile = program.schedule.problem.profile
        most = max(most, sum(size(profile, TransferKind.GRADIENT, s) for s in sums))
    return most
