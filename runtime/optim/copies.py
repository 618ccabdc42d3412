"""Copies of parameters on processes beside each other: they begin alike, and get alike gradients.

Nothing sums or averages them over tensor parallel processes, so what is not alike would stay so: a
stage made of other random numbers, a shard that nobody said is one, a norm of parts of a sequence
whose gradients are parts of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose, isfinite
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import local
from ..stages.unused_parameters import reals
from .shard_squares import Processes, processes_of

Named: TypeAlias = tuple[int, str]  # a stage, and a parameter's name in it
START, GRADIENT = 1e-6, 1e-3  # how far norms may be apart: of values, of gradients by rounding
NEGLIGIBLE = 1e-6  # of the largest gradient's norm: what may be rounding alone


@dataclass(frozen=True, slots=True)
class _Summary:
    """A fingerprint of a tensor; ``norm`` is None where there is no tensor."""

    shape: tuple[int, ...] = ()
    norm: float | None = None

    @classmethod
    def of(cls, tensor: Tensor | None) -> _Summary:
        if tensor is None:
            return cls()
        here = reals(local(tensor.detach()))
        return cls(tuple(here.shape), float(torch.linalg.vector_norm(here, dtype=torch.float64)))

    def equals(self, other: _Summary | None, rel: float, least: float) -> bool:
        """Whether both are equal; a norm that is not finite equals any, as it says nothing of its
        source."""
        if other is None or self.shape != other.shape:
            return False
        if self.norm is None or other.norm is None:
            return self.norm is other.norm
        if not (isfinite(self.norm) and isfinite(other.norm)):
            return True
        return isclose(self.norm, other.norm, rel_tol=rel, abs_tol=least)


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
        own = {named: _Summary.of(p) for named, p in self._copies.items()}
        found = [
            f"norm_groups: expected a pattern for {name} of stage {stage}, or copies of it on all "
            f"of the processes {list(processes)}, where it differs"
            for (stage, name), processes in self._differing(own, START, 0.0)
        ]
        return found[0] if found else None

    def gradients(self, stage: int) -> None:
        """Compares gradients once, in the first step. Raises InputError where those of the stage's
        copies differ."""
        if stage in self._seen:
            return
        self._seen.add(stage)
        own = {n: _Summary.of(p.grad) for n, p in self._copies.items() if n[0] == stage}
        least = NEGLIGIBLE * max((s.norm or 0.0 for s in own.values()), default=0.0)
        for (_, name), processes in [*self._differing(own, GRADIENT, least)][:1]:
            raise InputError(
                f"stages[{stage}]: {name}: expected one gradient on the processes "
                f"{list(processes)}, each of which has a copy, got several: a SequenceParallel "
                "layout where a module has a part of each sequence, or a pattern in norm_groups"
            )

    def _differing(
        self, own: Mapping[Named, _Summary], rel: float, least: float
    ) -> Iterator[tuple[Named, Processes]]:
        for group in self._groups:
            rows: list[Any] = [None] * group.size()
            dist.all_gather_object(rows, own, group=group)
            for named in sorted(set().union(*rows)):
                first, *others = (row.get(named) for row in rows)
                if first is None or not all(first.equals(x, rel, least) for x in others):
                    yield named, processes_of(group)
