"""Adds the optimizer step of every stage."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.program import Compute, Instruction, Program, Step
from pipeloom.ir.model.schedule import Updates
from pipeloom.ir.model.transfers import holders, owned

from .segments import Row, after_sends, joined, segments


def step_stages(program: Program) -> Program:
    """Add a step for each stage that a rank holds, after the rank's last op and its reduces.

    If a rank has several stages, one of them may be complete earlier. It is not stepped earlier, as
    other ranks may wait for the rank's remaining ops, and the schedule's times do not include steps
    between ops. With an update after each microbatch, a step follows each weight gradient, after
    the sends that other ranks wait for. Raises InvalidScheduleError if such updates are combined
    with weight passing or replicated stages.
    """
    if program.schedule.updates is Updates.MICROBATCH:
        _check_alone(program)
        return replace(program, instructions=tuple(map(_each, program.instructions)))
    rows = zip(program.instructions, owned(program.schedule), strict=True)
    return replace(program, instructions=tuple((*row, *map(Step, stages)) for row, stages in rows))


def _check_alone(program: Program) -> None:
    if program.schedule.transfers or any(len(ranks) > 1 for ranks in holders(program.schedule)):
        raise InvalidScheduleError(
            [
                "updates: after each microbatch: expected each stage on one rank, where its "
                "weights stay"
            ]
        )


def _each(row: Row) -> Row:
    return joined([_stepped(segment) for segment in segments(row)])


def _stepped(segment: list[Instruction]) -> list[Instruction]:
    """``segment``, with an optimizer step added if its first instruction is a W or BW.

    The step comes after that op and the sends directly after it.
    """
    if not segment or not isinstance(segment[0], Compute):
        return segment
    op = segment[0].op
    if op.kind not in (OpKind.W, OpKind.BW):
        return segment
    rest = after_sends(segment, 0) + 1
    return [*segment[:rest], Step(op.stage), *segment[rest:]]
