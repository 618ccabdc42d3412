"""What a program asks of its ranks."""

from __future__ import annotations

import torch.distributed as dist

from pipeloom.ir import program as ir
from pipeloom.ir.errors import InputError
from pipeloom.ir.program import Program
from pipeloom.ir.schedule import Schedule

from .transport import whereabouts


def rank_in(program: Program, group: dist.ProcessGroup | None) -> int:
    """This rank. Raises InputError where the program is for another number of them."""
    ranks = program.schedule.problem.ranks
    rank, size = whereabouts(group)
    if size != ranks:
        raise InputError(f"program: made for {ranks} ranks, run by {size}")
    return rank


def has_relays(program: Program) -> bool:
    """Whether norms are relayed, for post-validation."""
    return any(isinstance(i, ir.Relay) for row in program.instructions for i in row)


def users_of(program: Program) -> list[list[int]]:
    """The ranks that run each stage."""
    users: list[list[int]] = [[] for _ in range(program.schedule.problem.stages)]
    for rank, row in enumerate(program.instructions):
        for stage in sorted({i.op.stage for i in row if isinstance(i, ir.Compute)}):
            users[stage].append(rank)
    return users


def passed_on(schedule: Schedule, rank: int) -> set[int]:
    """The stages whose weights or gradients come by ``rank``, whether or not it runs them."""
    return {t.stage for t in schedule.transfers if rank in (t.source, t.target)}


def averaged(program: Program, rank: int) -> list[int]:
    """The stages whose gradients ``rank`` averages over replicas, in the order in which it does."""
    return [i.stage for i in program.instructions[rank] if isinstance(i, ir.Average)]
