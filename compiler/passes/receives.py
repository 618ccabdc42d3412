"""When to post receives: early enough that no send waits, late enough to hold few buffers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeloom.ir.ops import FloatArray
from pipeloom.ir.program import Instruction, Program, Receive, Send, Tensor

from .rows import BLOCKING, Row, insert_before, joined, segments


@dataclass(frozen=True, slots=True)
class PostReceives:
    """Posts each receive ``slack`` ops before the last moment that keeps its send from waiting.

    That moment is the end of the last op of its rank that ends, by the planned times, strictly
    before the send is posted; receives with no such op, or fewer than ``slack`` before it, are
    posted at the start. In a channel receives stay in the order of the sends (the later a send,
    the later this moment), and the program stays free of deadlock (see ``docs/program.md``; with
    "not after" in place of "before", ops that take no time could deadlock).

    ``slack`` 1 lets a rank be up to an op later than planned: where every op's time varies by
    20 %, slack 0 costs up to 2.3 % (more, the longer messages take), slack 1 nothing and some
    buffers more (``benchmarks/receives``).
    """

    slack: int = 1

    def __call__(self, program: Program) -> Program:
        timing = program.schedule.timing
        assert timing is not None, "compute() times the schedule"
        sent = _send_times(program)
        rows = (
            self._moved(row, ends, sent)
            for row, ends in zip(program.instructions, timing.end, strict=True)
        )
        return replace(program, instructions=tuple(rows))

    def _moved(self, row: Row, ends: FloatArray, sent: dict[Tensor, float]) -> Row:
        cut = segments(item for item in row if not isinstance(item, Receive))
        receives = [item for item in row if isinstance(item, Receive)]
        last = np.searchsorted(ends, np.array([sent[item.tensor] for item in receives]))
        posts: list[list[Instruction]] = [[] for _ in cut]
        for item, at in zip(receives, np.maximum(last - self.slack, 0).tolist(), strict=True):
            posts[at].append(item)
        return joined(
            [
                insert_before(segment, BLOCKING, new) if new else segment
                for segment, new in zip(cut, posts, strict=True)
            ]
        )


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
