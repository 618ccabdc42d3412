"""One rank's instructions cut at its computes: what the passes insert into and put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from pipeloom.ir.program import Compute, Instruction, Reduce, Step, WaitReceive, WaitSend

Row: TypeAlias = tuple[Instruction, ...]
Segments: TypeAlias = list[list[Instruction]]

# After each compute, what never blocks comes before what may: sends, frees, receives, then these.
BLOCKING = (WaitSend, WaitReceive, Reduce, Step)


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


def joined(cut: Segments) -> Row:
    """The inverse of :func:`segments`."""
    return tuple(instruction for segment in cut for instruction in segment)


def insert_before(
    segment: list[Instruction],
    kinds: tuple[type, ...],
    new: Sequence[Instruction],
) -> list[Instruction]:
    """``segment`` with ``new`` before its first instruction of ``kinds``, or at its end."""
    at = next((i for i, item in enumerate(segment) if isinstance(item, kinds)), len(segment))
    return [*segment[:at], *new, *segment[at:]]
