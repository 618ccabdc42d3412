"""Ops, as objects, as text and as integers.

An op is the work of one rank on one microbatch and one stage. As text, ``2F0`` is the forward of
microbatch 0 on stage 2; the other kinds are written in the same way.

The packed form, for arrays of thousands of ops, is one 64-bit integer per op: the kind in bits 0-2,
the stage in bits 3-22, the microbatch in the bits from 23 on. Kernels decode it with shifts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

STAGE_SHIFT = 3
MICROBATCH_SHIFT = 23
KIND_MASK = (1 << STAGE_SHIFT) - 1
STAGE_MASK = (1 << (MICROBATCH_SHIFT - STAGE_SHIFT)) - 1
CLASS_MASK = (1 << MICROBATCH_SHIFT) - 1
"""Mask of the bits of a packed op that hold its kind and its stage."""


class OpKind(IntEnum):
    """The kind of an op.

    F: forward. B: gradient with respect to the stage's input. W: gradient with respect to the
    stage's weights. BW: B and W as one op. R recomputes the stage's activations before B. O
    offloads them to the host after F, and L loads them back before B (:mod:`..cost.remat`).
    """

    F = 0
    B = 1
    W = 2
    BW = 3
    R = 4
    O = 5  # noqa: E741
    L = 6

    @property
    def copies(self) -> bool:
        """Whether ops of this kind copy between device and host (O, L) while other ops run."""
        return self >= OpKind.O


KINDS = tuple(OpKind)
"""All kinds, indexed by their number. Indexing is five times as fast as calling ``OpKind``."""
_TEXT = re.compile(r"(\d+)(F|BW|B|W|R|O|L)(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Op:
    """One op, such as ``Op(OpKind.F, 2, 0)``, whose text is ``2F0``."""

    kind: OpKind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Op:
        """The op whose text is ``text``, such as ``2F0``. Raises ValueError if it is not an op."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"not an op: {text!r} (expected e.g. 2F0, 2B0, 2W0, 2BW0, 2R0, 2O0 or 2L0)"
            )
        return cls(OpKind[match[2]], int(match[1]), int(match[3]))

    @property
    def packed(self) -> int:
        return self.microbatch << MICROBATCH_SHIFT | self.stage << STAGE_SHIFT | self.kind

    @classmethod
    def unpack(cls, packed: int) -> Op:
        return cls(
            KINDS[packed & KIND_MASK],
            packed >> STAGE_SHIFT & STAGE_MASK,
            packed >> MICROBATCH_SHIFT,
        )


def pack(ops: Iterable[Op]) -> IntArray:
    """The packed form of ``ops``: 64-bit integers, shape (number of ops,)."""
    return np.fromiter((op.packed for op in ops), dtype=np.int64)


def pack_all(kind: OpKind, stages: int | IntArray, microbatches: IntArray) -> IntArray:
    """N packed ops of one kind, shape (N,): op i is for ``microbatches[i]`` on ``stages[i]``.

    ``stages`` can also be a single number, for all ops on the same stage.
    """
    packed: IntArray = microbatches << MICROBATCH_SHIFT | stages << STAGE_SHIFT | int(kind)
    return packed


def unpack(packed: IntArray) -> list[Op]:
    """The :class:`Op` objects of packed ops; the inverse of :func:`pack`."""
    return [Op.unpack(value) for value in packed.tolist()]


def fields_of(packed: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Three arrays with the shape of ``packed``: kind, stage and microbatch of each packed op."""
    return packed & KIND_MASK, packed >> STAGE_SHIFT & STAGE_MASK, packed >> MICROBATCH_SHIFT


def offsets_of(order: Sequence[IntArray]) -> IntArray:
    """The start of each rank's ops in the concatenation of all ranks' ops, shape (P + 1,).

    ``order``: the ops of each rank. The last entry is the number of all ops.
    """
    return np.cumsum([0, *map(len, order)]).astype(np.int64)


def format_order(ops: Iterable[Op]) -> str:
    """The ops as text, separated by spaces, such as ``0F0 0F1 0B0 0W0``."""
    return " ".join(map(str, ops))


def parse_order(text: str) -> list[Op]:
    """The inverse of :func:`format_order`. Raises ValueError if a word is not an op."""
    return [Op.parse(word) for word in text.split()]


def split_backwards(row: IntArray) -> IntArray:
    """A copy of ``row``, one rank's packed ops, in which each BW is replaced by B, then W.

    The previous stage then gets its gradient at the end of B, earlier than at the end of BW.
    """
    kinds = row & KIND_MASK
    fused = kinds == OpKind.BW
    ops = np.repeat(row, 1 + fused)
    first = np.cumsum(1 + fused) - (1 + fused)
    ops[first[fused]] += OpKind.B - OpKind.BW
    ops[first[fused] + 1] += OpKind.W - OpKind.BW
    return ops
