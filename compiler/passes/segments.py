"""One rank's instructions, split at its computes, between which messages are placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from pipeloom.ir.model.program import Compute, Instruction, Send

Row: TypeAlias = tuple[Instruction, ...]
Segments: TypeAlias = list[list[Instruction]]


def segments(row: Iterable[Instruction]) -> Segments:
    """``row`` split into the instructions before its first compute, and each compute with those
    after it.

    Segment i + 1 begins with the rank's i-th compute; there is one more segment than computes.
    """
    cut: Segments = [[]]
    for instruction in row:
        if isinstance(instruction, Compute):
            cut.append([])
        cut[-1].append(instruction)
    return cut


def after_sends(row: Sequence[Instruction], at: int) -> int:
    """The index of the last send directly after ``at``, or ``at`` if there is none."""
    while at + 1 < len(row) and isinstance(row[at + 1], Send):
        at += 1
    return at


def inserted(row: Row, after: Mapping[int, Iterable[Instruction]]) -> Row:
    """``row`` with instructions inserted after those at the given indices; -1 is the beginning."""
    pieces = ((*row[max(at, 0) : at + 1], *after.get(at, ())) for at in range(-1, len(row)))
    return tuple(chain.from_iterable(pieces))


def joined(cut: Segments) -> Row:
    """The inverse of :func:`segments`."""
    return tuple(chain.from_iterable(cut))
