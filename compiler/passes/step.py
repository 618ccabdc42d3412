"""The optimizer's step of every stage."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.program import Program, Step
from pipeloom.ir.travel import owned


def step_stages(program: Program) -> Program:
    """Steps the stages that each rank owns once the rank has computed and reduced everything.

    Not earlier, although a rank with several stages may be done with one of them: other ranks may
    be waiting for what it has yet to compute, and the plan has no time for the step in between.
    """
    rows = zip(program.instructions, owned(program.schedule), strict=True)
    return replace(program, instructions=tuple((*row, *map(Step, stages)) for row, stages in rows))
