"""Gradients of what several ranks have copies of, or several stages share: they are summed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program, Reduce
from pipeloom.ir.model.transfers import holders

Groups: TypeAlias = tuple[tuple[int, ...], ...]


def tied_groups(tied: Sequence[Sequence[int]], stages: int) -> Groups:
    """``tied`` in ascending order without repetition. Raises InputError for a wrong group."""
    for i, group in enumerate(tied):
        if len(set(group)) < 2 or not all(0 <= stage < stages for stage in group):
            raise InputError(
                f"tied[{i}]: expected two or more different stages of 0..{stages - 1}, got "
                f"{list(group)}"
            )
    return tuple(sorted({tuple(sorted(set(group))) for group in tied}))


@dataclass(frozen=True, slots=True)
class ReduceGradients:
    """Sums the gradients of tied stages, and of replicated ones, on every rank that has one.

    ``groups``: the tied ones. Parameters of a replicated stage that are tied belong to the reduce
    of their group alone. A reduce waits for all its ranks. It comes after the rank's last compute,
    so that no compute waits for another rank's weight gradients, and in the same order on every
    rank, so that two of them cannot wait for each other.
    """

    groups: Groups

    def __call__(self, program: Program) -> Program:
        homes = holders(program.schedule)
        replicated = {(stage,) for stage, ranks in enumerate(homes) if len(ranks) > 1}
        rows = list(program.instructions)
        for group in sorted({*self.groups, *replicated}):
            for rank in {rank for stage in group for rank in homes[stage]}:
                rows[rank] = (*rows[rank], Reduce(group))
        return replace(program, instructions=tuple(rows))
