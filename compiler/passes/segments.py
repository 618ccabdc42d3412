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

    The first segment contains the instructions before the first compute, and segment i + 1 begins
    with the rank's i-th compute, where i counts from 0. So there is one more segment than computes.
    """
    cut: Segments = [[]]
    for instruction in row:
        if isinstance(instruction, Compute):
            cut.append([])
        cut[-1].append(instruction)
    return cut


def after_sends(row: Sequence[Instruction], at: int) -> int:
    """The index of the last of the consecutive sends that directly follow index ``at`` in ``row``.

    If the next instruction is not a send, the result is ``at``.
    """
    while at + 1 < len(row) and isinstance(row[at + 1], Send):
        at += 1
    return at


def inserted(row: Row, after: Mapping[int, Iterable[Instruction]]) -> Row:
    """A copy of ``row`` with further instructions inserted.

    ``after``: the instructions to insert, by the index in ``row`` of the instruction that they
    follow; with the index -1, they are inserted at the beginning.
    """
    pieces = ((*row[max(at, 0) : at + 1], *after.get(at, ())) for at in range(-1, len(row)))
    return tuple(chain.from_iterable(pieces))


def joined(cut: Segments) -> Row:
    """The instructions of all segments in one row: the inverse of :func:`segments`."""
    return tuple(chain.from_iterable(cut))
