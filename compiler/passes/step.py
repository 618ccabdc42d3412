"""The optimizer's step of every stage."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.program import Compute, Program, Step


def step_stages(program: Program) -> Program:
    """Steps each rank's stages once the rank has computed and reduced everything.

    Not earlier, although a rank with several stages may be done with one of them: other ranks may
    be waiting for what it has yet to compute, and the plan has no time for the step in between.
    """
    rows = []
    for row in program.instructions:
        stages = sorted({item.op.stage for item in row if isinstance(item, Compute)})
        rows.append((*row, *map(Step, stages)))
    return replace(program, instructions=tuple(rows))
