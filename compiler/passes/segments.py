"""One rank's instructions cut at its computes: what messages are placed between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from pipeloom.ir.model.program import Compute, Instruction, Send

Row: TypeAlias = tuple[Instruction, ...]
Segments: TypeAlias = list[list[Instruction]]


def segments(row: Iterable[Instruction]) -> Segments:
    """``row`` as the instructions before its first compute, then each compute with what follows.

    Segment i + 1 begins with the rank's i-th compute; there is one segment more than computes.
    """
    cut: Segments = [[]]
    for instruction in row:
        if isinstance(instruction, Compute):
            cut.append([])
        cut[-1].append(instruction)
    return cut


def after_sends(row: Sequence[Instruction], at: int) -> int:
    """The place of the last of the sends right after ``at``; ``at`` where none is there."""
    while at + 1 < len(row) and isinstance(row[at + 1], Send):
        at += 1
    return at


def joined(cut: Segments) -> Row:
    """The inverse of :func:`segments`."""
    return tuple(instruction for segment in cut for instruction in segment)
