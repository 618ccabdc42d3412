"""Optimizer steps without a barrier: ranks step before the norm of all gradients is known.

::

    rank 0   ... 0W7 | sums ─┐  step | 0F0 0F1 0F2 verdict 0B0 ...
    rank 1   ...   1W7  |    └▶ sums ─┐  step | 1F0 1F1 ▲ verdict 1B0 ...
    rank 2   ...     2W7  |           └▶ sums  step | verdict ┘ 2F0 2B0 ...

The parts of the norm are summed from rank to rank (a *relay*), and each rank steps with the sum
over the ranks up to itself. The last rank thus knows the whole norm. In the next iteration, it
sends the *verdict* back: whether the steps were right, given the whole norm. The ops that a rank
runs before its verdict are its *head*. If the step of a rank was wrong, it is undone and repeated,
and the heads are run again.
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
    """Add the relays of post-validation (Zero Bubble Pipeline Parallelism, section 4) to a program.

    A rank relays the sums before its first optimizer step, and the verdict after as many of its
    first F's as possible. The inputs of these F's must also be computed in heads, so that a head
    never waits for a verdict. The last rank knows the norm when it steps and has no head. A message
    that is not both sent and received within heads is received, and waited for, after the verdict.
    With a single rank, the program is returned unchanged. Raises InputError if the schedule passes
    weights.
    """
    if program.schedule.transfers:
        raise InputError(
            "post_validation: expected a schedule that passes only activations, got one with "
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
    """The number of ops in the head of each rank; 0 for ``last``, the last rank of the relay."""
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
    """A rank's instructions in two parts, of which the first contains the first ``count`` ops.

    All instructions before these ops, and the sends directly after the last of them, are also in
    the first part.
    """
    if count == 0:
        return (), row
    parts = segments(row)
    head = joined([*parts[:count], parts[count][: after_sends(parts[count], 0) + 1]])
    return head, row[len(head) :]


def _within(heads: Sequence[Row]) -> set[ir.Tensor]:
    """The tensors that are both sent and received within the given heads."""
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
    late.sort(key=lambda item: isinstance(item, ir.WaitSend))  # receives do not block
    return (*(item for item in head if item not in late), verdict, *late, *rest)


def _with_sums(row: Row, sums: ir.Relay) -> Row:
    at = next(i for i, item in enumerate(row) if isinstance(item, ir.Step))
    return (*row[:at], sums, *row[at:])
