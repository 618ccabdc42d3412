"""When to make sure that a send has left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeloom.ir.costs import Costs
from pipeloom.ir.ops import FloatArray
from pipeloom.ir.program import Instruction, Program, Send, Tensor, TensorKind, WaitSend
from pipeloom.ir.schedule import Timing

from .rows import BLOCKING, Row, insert_before, joined, segments


def wait_sends(program: Program) -> Program:
    """Waits for each send at the end of the first op that ends after its planned arrival.

    By then it has left, so that waiting costs nothing as planned and the tensor's memory is given
    back soon. What arrives after the rank's last op is waited for at the very end of its program,
    after the optimizer's step, which it overlaps.
    """
    timing = program.schedule.timing
    assert timing is not None, "compute() times the schedule"
    costs = Costs.of(program.schedule.problem)
    rows = (
        _with_waits(row, timing.end[rank], costs, timing)
        for rank, row in enumerate(program.instructions)
    )
    return replace(program, instructions=tuple(rows))


def _with_waits(row: Row, ends: FloatArray, costs: Costs, timing: Timing) -> Row:
    cut = segments(row)
    due: list[list[Instruction]] = [[] for _ in cut]
    for i, segment in enumerate(cut):
        for item in segment:
            if isinstance(item, Send):
                posted = ends[i - 1] if i > 0 else 0.0
                arrival = _arrival(item.tensor, posted, costs, timing)
                due[_boundary(i, arrival, ends)].append(WaitSend(item.tensor))
    last = due.pop()
    for i, waits in enumerate(due):
        if waits:
            cut[i] = insert_before(cut[i], BLOCKING[1:], waits)
    return (*joined(cut), *last)


def _boundary(posted: int, arrival: float, ends: FloatArray) -> int:
    """The segment after ``posted`` that begins with the first op to end at ``arrival`` or later."""
    first = int(np.searchsorted(ends, arrival)) + 1
    return min(max(first, posted + 1), len(ends))


def _arrival(tensor: Tensor, posted: float, costs: Costs, timing: Timing) -> float:
    if tensor.kind is TensorKind.X:
        return posted + float(costs.into_f[tensor.stage, tensor.index])
    if tensor.kind is TensorKind.DY:
        return posted + float(costs.into_b[tensor.stage, tensor.index])
    return float(timing.transfers[tensor.index, 1])
