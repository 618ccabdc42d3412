"""Sums the gradients of tied and of replicated stages, and averages gradients over replicas of the
pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.program import Average, Compute, Instruction, Program, Reduce
from pipeloom.ir.model.transfers import holders, owned

from .segments import Row, after_sends, inserted

Groups: TypeAlias = tuple[tuple[int, ...], ...]


def tied_groups(tied: Sequence[Sequence[int]], stages: int) -> Groups:
    """The groups ``tied`` as sorted tuples, in ascending order and without duplicates.

    Raises InputError if a group has fewer than two different stages, or contains one that does not
    exist.
    """
    for i, group in enumerate(tied):
        if len(set(group)) < 2 or not all(0 <= stage < stages for stage in group):
            raise InputError(
                f"tied[{i}]: expected two or more different stages of 0..{stages - 1}, got "
                f"{list(group)}"
            )
    return tuple(sorted({tuple(sorted(set(group))) for group in tied}))


@dataclass(frozen=True, slots=True)
class ReduceGradients:
    """A pass that adds the sums of gradients over tied stages and over the ranks of replicated
    stages.

    ``groups``: the groups of tied stages. If a stage is both tied and replicated, the tied
    parameters are summed only once, together with their group. A reduce runs on all ranks that hold
    one of its stages, and waits for all of them. It comes after the rank's last compute, so that no
    compute waits for weight gradients of other ranks. All ranks run their reduces in the same
    order, so that two reduces cannot wait for each other.
    """

    groups: Groups

    def __call__(self, program: Program) -> Program:
        homes = holders(program.schedule)
        replicated = {(stage,) for stage, ranks in enumerate(homes) if len(ranks) > 1}
        rows = list(program.instructions)
        for group in sorted({*self.groups, *replicated}):
            for rank in {rank for stage in group for rank in homes[stage]}:
                rows[rank] = (*rows[rank], Reduce(group))
        return replace(program, instructions=tuple(rows))


def average_gradients(program: Program) -> Program:
    """Add the instructions that start averaging each stage's gradient over the replicas.

    A rank starts an average when the gradient is complete: after the stage's last weight gradient
    and the sends directly after that op, or after the sum over tied or replicated stages. The
    averages of streamed stages, whose weights are passed, start at the end of the program. Averages
    run in parallel with the rest of the iteration.
    """
    streamed = program.schedule.streamed
    rows = zip(program.instructions, owned(program.schedule), strict=True)
    return replace(
        program, instructions=tuple(_averaged(row, stages, streamed) for row, stages in rows)
    )


def _averaged(row: Row, stages: tuple[int, ...], streamed: set[int]) -> Row:
    after: defaultdict[int, list[Instruction]] = defaultdict(list)
    for stage in stages:
        last = max((i for i, item in enumerate(row) if _adds(item, stage)), default=-1)
        after[len(row) - 1 if stage in streamed else after_sends(row, last)].append(Average(stage))
    return inserted(row, after)


def _adds(item: Instruction, stage: int) -> bool:
    if isinstance(item, Reduce):
        return stage in item.stages
    if not isinstance(item, Compute):
        return False
    return item.op.stage == stage and item.op.kind in (OpKind.W, OpKind.BW)
