"""Gradients averaged over the replicas of the whole pipeline: data parallelism beside it."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.program import Average, Compute, Instruction, Program, Reduce
from pipeloom.ir.model.transfers import owned

from .segments import Row, after_sends


def average_gradients(program: Program) -> Program:
    """Begins to average each stage's gradient as soon as its rank has all of it.

    That is after the stage's last weight gradient here and what is sent right after that op; after
    the sum over tied or replicated stages where there is one; and at the end where gradients
    are sent. The averaging runs beside what is left of the step.
    """
    streamed = program.schedule.streamed
    rows = zip(program.instructions, owned(program.schedule), strict=True)
    return replace(
        program, instructions=tuple(_averaged(row, stages, streamed) for row, stages in rows)
    )


def _averaged(row: Row, stages: tuple[int, ...], streamed: set[int]) -> Row:
    after: dict[int, list[Instruction]] = {}
    for stage in stages:
        at = len(row) - 1 if stage in streamed else _whole(row, stage)
        after.setdefault(at, []).append(Average(stage))
    return tuple(
        instruction
        for at in range(-1, len(row))
        for instruction in (*row[max(at, 0) : at + 1], *after.get(at, ()))
    )


def _whole(row: Row, stage: int) -> int:
    """The place in ``row`` where the stage's gradient is whole and its last op's sends are out."""
    return after_sends(
        row, max((i for i, item in enumerate(row) if _adds(item, stage)), default=-1)
    )


def _adds(item: Instruction, stage: int) -> bool:
    if isinstance(item, Reduce):
        return stage in item.stages
    if not isinstance(item, Compute):
        return False
    return item.op.stage == stage and item.op.kind in (OpKind.W, OpKind.BW)
