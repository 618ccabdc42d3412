"""A rank's instructions, split before each compute, so that messages can be placed between
computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from pipeloom.ir.model.program import Compute, Instruction, Send

Row: TypeAlias = tuple[Instruction, ...]
Segments: TypeAlias = list[list[Instruction]]


def segments(row: Iterable[Instruction]) -> Segments:
    """``row`` split before each compute.

    The first segment has the instructions before the first compute, and segment i + 1 begins with
    the rank's i-th compute, where i counts from 0. So there is one more segment than computes.
    """
    cut: Segments = [[]]
    for instruction in row:
        if isinstance(instruction, Compute):
            cut.append([])
        cut[-1].append(instruction)
    return cut


def after_sends(row: Sequence[Instruction], at: int) -> int:
    """The index of the last of the sends directly after index ``at``; ``at`` without sends."""
    while at + 1 < len(row) and isinstance(row[at + 1], Send):
        at += 1
    return at


def inserted(row: Row, after: Mapping[int, Iterable[Instruction]]) -> Row:
    """``row`` with further instructions after some of its indices.

    ``after``: the instructions to insert, by the index after which they come; -1 is the beginning.
    """
    pieces = ((*row[max(at, 0) : at + 1], *after.get(at, ())) for at in range(-1, len(row)))
    return tuple(chain.from_iterable(pieces))


def joined(cut: Segments) -> Row:
    """The instructions of all segments in one row: the inverse of :func:`segments`."""
    return tuple(chain.from_iterable(cut))
