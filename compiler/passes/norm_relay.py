"""Optimizer steps that wait for no barrier: the norm is relayed, the verdict comes an iteration
later.

::

    rank 0   ... 0W7 | sums ─┐  step | 0F0 0F1 0F2 verdict 0B0 ...
    rank 1   ...   1W7  |    └▶ sums ─┐  step | 1F0 1F1 ▲ verdict 1B0 ...
    rank 2   ...     2W7  |           └▶ sums  step | verdict ┘ 2F0 2B0 ...

Each rank steps by the sum of the ranks up to it. What a rank runs before its verdict, its *head*,
is run again where a rank stepped wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.transfers import holders, stepping
from pipeloom.ir.units import counted

from .segments import Row, after_sends, joined, segments


def relay_norms(program: Program) -> Program:
    """Adds the relays of post-validation (Zero Bubble Pipeline Parallelism, section 4).

    The sums stand before a rank's first step, the verdict after as many of its first F's as can be:
    their inputs must be made by ops of heads too, so that a head waits for no verdict. The last
    rank knows all when it steps and has no head. Messages with an end in no head are received, and
    waited for, after the verdict, so that heads wait for heads alone.
    One rank alone needs no relay. Raises InputError where weights are passed.
    """
    if program.schedule.transfers:
        raise InputError(
            "post_validation: expected a schedule that passes activations alone, got one with "
            f"{counted(len(program.schedule.transfers), 'transfer')} of weights and gradients"
        )
    order = stepping(holders(program.schedule))
    if len(order) < 2:
        return program
    heads = _heads(program.instructions, order[-1])
    cut = [_cut(row, count) for row, count in zip(program.instructions, heads, strict=True)]
    within = _within([head for head, _ in cut])
    rows = [(*head, *rest) for head, rest in cut]
    for rank, before, after in zip(order, (None, *order), (*order[1:], None), strict=False):
        verdict = ir.Relay(ir.RelayKind.VERDICT, after, before)
        sums = ir.Relay(ir.RelayKind.SUMS, before, after)
        rows[rank] = _with_sums(_validated(*cut[rank], verdict, within), sums)
    return replace(program, instructions=tuple(rows))


def _heads(rows: Sequence[Row], last: int) -> list[int]:
    """How many ops each rank's head has."""
    heads = [_first_forwards(row) for row in rows]
    heads[last] = []
    while True:
        ran = {op for head in heads for op in head}
        shorter = [[*takewhile(partial(_fed, ran), head)] for head in heads]
        if shorter == heads:
            return [len(head) for head in heads]
        heads = shorter


def _first_forwards(row: Row) -> list[Op]:
    ops = (item.op for item in row if isinstance(item, ir.Compute))
    return list(takewhile(lambda op: op.kind is OpKind.F, ops))


def _fed(ran: set[Op], op: Op) -> bool:
    return op.stage == 0 or replace(op, stage=op.stage - 1) in ran


def _cut(row: Row, count: int) -> tuple[Row, Row]:
    """The first ``count`` ops, with all before them and the sends right after; the rest."""
    if count == 0:
        return (), row
    parts = segments(row)
    head = joined([*parts[:count], parts[count][: after_sends(parts[count], 0) + 1]])
    return head, row[len(head) :]


def _within(heads: Sequence[Row]) -> set[ir.Tensor]:
    """Tensors that heads both send and receive."""
    sent, received = (
        {item.tensor for head in heads for item in head if isinstance(item, kind)}
        for kind in (ir.Send, ir.Receive)
    )
    return sent & received


def _validated(head: Row, rest: Row, verdict: ir.Relay, within: set[ir.Tensor]) -> Row:
    late = [
        item
        for item in head
        if isinstance(item, ir.Receive | ir.WaitSend) and item.tensor not in within
    ]
    late.sort(key=lambda item: isinstance(item, ir.WaitSend))  # what does not block first
    return (*(item for item in head if item not in late), verdict, *late, *rest)


def _with_sums(row: Row, sums: ir.Relay) -> Row:
    at = next(i for i, item in enumerate(row) if isinstance(item, ir.Step))
    return (*row[:at], sums, *row[at:])
