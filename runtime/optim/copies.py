"""Copies of parameters on processes beside each other: they begin alike, and get alike gradients.

Nothing sums or averages them over tensor parallel processes, so what is not alike would stay so: a
stage made of other random numbers, a shard that nobody said is one, a norm of parts of a sequence
whose gradients are parts of a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose, isfinite
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import local
from ..stages.gradients import reals
from .shard_squares import Processes, processes_of

Named: TypeAlias = tuple[int, str]  # a stage, and a parameter's name in it
Summary: TypeAlias = tuple[tuple[int, ...], float] | None  # shape and norm; of no tensor None
START, GRADIENT = 1e-6, 1e-3  # how far norms may be apart: of values, of gradients by rounding
NEGLIGIBLE = 1e-6  # of the largest gradient's norm: what may be rounding alone


def _summary(tensor: Tensor | None) -> Summary:
    """A fingerprint of a tensor."""
    if tensor is None:
        return None
    here = reals(local(tensor.detach()))
    return tuple(here.shape), float(torch.linalg.vector_norm(here, dtype=torch.float64))


def _alike(one: Summary, other: Summary, rel: float, least: float) -> bool:
    """Whether both are equal; a norm that is not finite equals any, as it says nothing of its
    source."""
    if one is None or other is None or one[0] != other[0]:
        return one is other
    norms = one[1], other[1]
    return not all(map(isfinite, norms)) or isclose(*norms, rel_tol=rel, abs_tol=least)


class CopiesCheck:
    """Compares what the processes of each of ``groups`` have of ``copies``; all of them call it."""

    def __init__(
        self, copies: Mapping[Named, nn.Parameter], groups: Sequence[dist.ProcessGroup]
    ) -> None:
        self._copies, self._groups = copies, groups
        self._seen: set[int] = set()

    def values(self) -> str | None:
        """A line on a parameter that begins with other values, or is not on all; None where all
        agree."""
        found = self._differing({n: _summary(p) for n, p in self._copies.items()}, START, 0.0)
        if found is None:
            return None
        (stage, name), processes = found
        return (
            f"norm_groups: expected a pattern for {name} of stage {stage}, or copies of it on all "
            f"of the processes {list(processes)}, where it differs"
        )

    def gradients(self, stage: int) -> None:
        """Compares gradients once, in the first step. Raises InputError where those of the stage's
        copies differ."""
        if stage in self._seen:
            return
        self._seen.add(stage)
        own = {n: _summary(p.grad) for n, p in self._copies.items() if n[0] == stage}
        least = NEGLIGIBLE * max((s[1] for s in own.values() if s), default=0.0)
        found = self._differing(own, GRADIENT, least)
        if found is not None:
            raise InputError(
                f"stages[{stage}]: {found[0][1]}: expected one gradient on the processes "
                f"{list(found[1])}, each of which has a copy, got several: a SequenceParallel "
                "layout where a module has a part of each sequence, or a pattern in norm_groups"
            )

    def _differing(
        self, own: Mapping[Named, Summary], rel: float, least: float
    ) -> tuple[Named, Processes] | None:
        """The first that differs, and the processes over which it does."""
        differing: list[tuple[Named, Processes]] = []
        for group in self._groups:  # all of them, also after a difference: others wait there
            rows: list[Any] = [None] * group.size()
            dist.all_gather_object(rows, own, group=group)
            for named in sorted(set().union(*rows)):
                found = [row[named] for row in rows if named in row]
                alike = all(_alike(found[0], other, rel, least) for other in found)
                if len(found) < len(rows) or not alike:
                    differing.append((named, processes_of(group)))
        return differing[0] if differing else None
