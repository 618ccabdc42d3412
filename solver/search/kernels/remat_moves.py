"""Moves of the local search that change which microbatches are recomputed, offloaded or fused.

A rank's part of the order holds the ops that run and, from position ``stop`` on, the unused R's,
O's, L's and W's. A move inserts unused ops among those that run: an R right before its B, an O soon
after its F, an L shortly before its B, a W right behind its B. Or it moves such ops back to the
unused ones.
"""

from __future__ import annotations

from pipeloom.ir.cost.remat import OFFLOADED, RECOMPUTED, Choice
from pipeloom.ir.model.ops import IntArray, OpKind

from ...core.kernels import State, kind_of, lean, packed, random
from .lists import Remat

_F, _B, _W, _BW = map(int, (OpKind.F, OpKind.B, OpKind.W, OpKind.BW))
_R, _O, _L = int(OpKind.R), int(OpKind.O), int(OpKind.L)
CHANGES = 0.3  # share of the moves that are of this kind
RUN = 4  # maximum number of consecutive microbatches that a move changes
NEAR = 6  # an O is inserted less than this many positions behind its F, an L before its B
# a choice in addition to those of :mod:`pipeloom.ir.cost.remat`: fuse B and W, or split them again
FUSED = -2


@lean
def change_choices(
    order: IntArray, offsets: IntArray, owner: IntArray, remat: Remat, state: State
) -> tuple[int, int, int]:
    """Recompute, offload or fuse some microbatches of a random stage, or undo this.

    The microbatches are consecutive. Returns the stage's rank, and the first and the last position
    of this rank's part of the order; (0, 0, -1) if nothing has changed.
    """
    stage = int(random(state) * owner.shape[0])
    row = int(random(state) * remat.allowed.shape[0])
    if not remat.allowed[row, stage]:
        return 0, 0, -1
    rank, wanted = owner[stage, 0], row if row <= RECOMPUTED else RECOMPUTED - row
    since = int(random(state) * owner.shape[1])
    until = min(owner.shape[1], since + 1 + int(RUN * random(state) ** 2))
    low, high = offsets[rank], offsets[rank + 1] - 1
    choice = remat.arrays[0]
    if not _change(order, low, remat.stop, rank, choice, stage, since, until, wanted, state):
        return 0, 0, -1
    return rank, low, high


@lean
def _change(  # noqa: PLR0917
    order: IntArray,  # changed, as are stop and choice
    first: int,  # position of the rank's first op
    stop: IntArray,
    rank: int,
    choice: Choice,
    stage: int,
    since: int,
    until: int,
    wanted: int,
    state: State,
) -> bool:
    """Change the choice for microbatches ``since`` to ``until - 1`` of a stage to ``wanted``.

    ``wanted``: STAYS, RECOMPUTED, OFFLOADED or FUSED. FUSED merges B and W into a BW; but if the
    backward of microbatch ``since`` is a BW already, the BW's of all these microbatches are split
    instead. ``first``: position of the rank's first op. ``stop``: for each rank, the position after
    the last op that runs. Returns whether anything has changed.
    """
    changed = False
    if wanted == FUSED:
        split = kind_of(order[_backward(order, first, packed(_F, stage, since))]) == _BW
        for microbatch in range(since, until):
            changed |= _fuse_or_split(
                order, first, stop, rank, packed(_F, stage, microbatch), split
            )
        return changed
    for microbatch in range(since, until):
        was, of = choice[stage, microbatch], packed(_F, stage, microbatch)
        if was == wanted:
            continue
        changed = True
        choice[stage, microbatch] = wanted
        if was == RECOMPUTED:
            _take_out(order, first, stop, rank, of | _R)
        elif was == OFFLOADED:
            _take_out(order, first, stop, rank, of | _O)
            _take_out(order, first, stop, rank, of | _L)
        before = _backward(order, first, of)
        if wanted == RECOMPUTED:
            _put_in(order, stop, rank, of | _R, before)
        elif wanted == OFFLOADED:
            out = _find(order, first, of | _F) + 1 + int(NEAR * random(state) ** 2)
            out = min(out, before)
            back = max(out, before - int(NEAR * random(state) ** 2))
            _put_in(order, stop, rank, of | _O, out)
            _put_in(order, stop, rank, of | _L, back + 1)
    return changed


@lean
def _fuse_or_split(  # noqa: PLR0917
    order: IntArray, first: int, stop: IntArray, rank: int, of: int, split: bool
) -> bool:
    """Fuse B and W of a microbatch into a BW or, with ``split``, split its BW into B and W.

    ``of``: the packed F of the microbatch; as F is kind 0, ``of | _B`` is its B. ``first``,
    ``stop``: as for :func:`_change`. Returns whether the order has changed; it has not if the
    backward already was as wanted.
    """
    at = _backward(order, first, of)
    if (kind_of(order[at]) == _BW) != split:
        return False
    if split:
        order[at] = of | _B
        _put_in(order, stop, rank, of | _W, at + 1)
    else:
        order[at] = of | _BW
        _take_out(order, at, stop, rank, of | _W)
    return True


@lean
def _take_out(order: IntArray, first: int, stop: IntArray, rank: int, op: int) -> None:
    stop[rank] -= 1
    _carry(order, _find(order, first, op), stop[rank])


@lean
def _put_in(order: IntArray, stop: IntArray, rank: int, op: int, target: int) -> None:
    _carry(order, _find(order, stop[rank], op), target)
    stop[rank] += 1


@lean
def _find(order: IntArray, first: int, op: int) -> int:
    at = first
    while order[at] != op:
        at += 1
    return at


@lean
def _backward(order: IntArray, first: int, of: int) -> int:
    at = first
    while order[at] != of | _B and order[at] != of | _BW:
        at += 1
    return at


@lean
def _carry(order: IntArray, source: int, target: int) -> None:
    """Move an op from position ``source`` to ``target``, and shift those in between by one."""
    op = order[source]
    step = 1 if target > source else -1
    at = source
    while at != target:
        order[at] = order[at + step]
        at += step
    order[target] = op
