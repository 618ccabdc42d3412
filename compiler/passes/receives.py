"""When to post receives: early enough that no send waits, late enough to hold few buffers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeloom.ir.program import Instruction, Program, Receive, Send, Tensor

from .rows import BLOCKING, insert_before, joined, segments


def post_receives(program: Program) -> Program:
    """Posts each receive after the last op of its rank that ends before its send is posted.

    Strictly before, by the planned times; where there is no such op, at the start. So no send
    waits for its receive as planned, in a channel receives are posted in the order of the sends
    (the later a send, the later this moment), and the program stays free of deadlock (see
    ``docs/program.md``; with "not after" in place of "before", ops that take no time could
    deadlock).
    """
    timing = program.schedule.timing
    assert timing is not None, "compute() times the schedule"
    posted = _send_times(program)
    rows = []
    for row, ends in zip(program.instructions, timing.end, strict=True):
        cut = segments(item for item in row if not isinstance(item, Receive))
        receives = [item for item in row if isinstance(item, Receive)]
        times = np.array([posted[item.tensor] for item in receives])
        moved: list[list[Instruction]] = [[] for _ in cut]
        for item, at in zip(receives, np.searchsorted(ends, times).tolist(), strict=True):
            moved[at].append(item)
        rows.append(
            joined(
                [
                    insert_before(segment, BLOCKING, new) if new else segment
                    for segment, new in zip(cut, moved, strict=True)
                ]
            )
        )
    return replace(program, instructions=tuple(rows))


def _send_times(program: Program) -> dict[Tensor, float]:
    """When each send is posted as planned: at the end of the op before it."""
    timing = program.schedule.timing
    assert timing is not None, "compute() times the schedule"
    return {
        item.tensor: float(ends[i - 1]) if i > 0 else 0.0
        for row, ends in zip(program.instructions, timing.end, strict=True)
        for i, segment in enumerate(segments(row))
        for item in segment
        if isinstance(item, Send)
    }
