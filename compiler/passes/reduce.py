"""Parameters that several stages share: their gradients are summed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.program import Program, Reduce
from pipeloom.ir.travel import owned

Groups: TypeAlias = tuple[tuple[int, ...], ...]


def tied_groups(tied: Sequence[Sequence[int]], stages: int) -> Groups:
    """``tied`` in ascending order without repetition. Raises InputError for a wrong group."""
    for i, group in enumerate(tied):
        if len(set(group)) < 2 or not all(0 <= stage < stages for stage in group):
            raise InputError(
                f"tied[{i}]: expected two or more different stages of 0..{stages - 1}, got {list(group)}"
            )
    return tuple(sorted({tuple(sorted(set(group))) for group in tied}))


@dataclass(frozen=True, slots=True)
class ReduceTied:
    """Sums the gradients of tied stages on every rank that owns one of them.

    A reduce waits for all its ranks. It comes after the rank's last compute, so that no compute
    waits for another rank's weight gradients, and in the same order on every rank, so that two
    of them cannot wait for each other.
    """

    groups: Groups

    def __call__(self, program: Program) -> Program:
        rows = []
        for row, stages in zip(program.instructions, owned(program.schedule), strict=True):
            reduces = (Reduce(group) for group in self.groups if not set(group).isdisjoint(stages))
            rows.append((*row, *reduces))
        return replace(program, instructions=tuple(rows))
