"""Checks that copies of parameters on several processes start equal and get equal gradients.

The pipeline neither sums nor averages the gradients of copies over tensor-parallel processes, so a
difference would persist. Causes are a stage initialized with other random numbers, a shard that is
not declared as one, and a normalization layer that sees only a part of each sequence, so that its
gradient on one process is only a part of a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import isclose, isfinite
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import local
from ..stages.gradients import reals
from .shard_squares import Processes, processes_of, unlike

Named: TypeAlias = tuple[int, str]  # a stage, and a parameter's name in it
Summary: TypeAlias = tuple[tuple[int, ...], float] | None  # shape and norm of a tensor
START, GRADIENT = 1e-6, 1e-3  # relative tolerances: for initial values, for gradients
NEGLIGIBLE = 1e-6  # times the largest norm of a gradient: such differences may be rounding errors


def _summary(tensor: Tensor | None) -> Summary:
    """Returns the shape and the norm of a tensor, by which copies of it are compared.

    They are those of the local part of a DTensor. Returns None for None.
    """
    if tensor is None:
        return None
    here = reals(local(tensor.detach()))
    return tuple(here.shape), float(torch.linalg.vector_norm(here, dtype=torch.float64))


def _alike(one: Summary, other: Summary, rel: float, least: float) -> bool:
    """Whether two tensors have equal shapes and nearly equal norms, or both are None.

    Norms are nearly equal if they differ by at most ``rel`` times the larger one or by at most
    ``least``, or if one of them is not finite.
    """
    if one is None or other is None or one[0] != other[0]:
        return one is other
    norms = one[1], other[1]
    return not all(map(isfinite, norms)) or isclose(*norms, rel_tol=rel, abs_tol=least)


class CopiesCheck:
    """Compares ``copies`` between the processes of each of ``groups``.

    ``copies``: by (stage, name), those parameters of this process that all other processes of the
    groups must have as well. All processes of the groups call the methods at the same time.
    """

    def __init__(
        self, copies: Mapping[Named, nn.Parameter], groups: Sequence[dist.ProcessGroup]
    ) -> None:
        self._copies, self._groups = copies, groups
        self._seen: set[int] = set()

    def values(self) -> str | None:
        """Returns an error message about the first parameter whose copies differ, or None.

        Copies differ if their initial values differ or if a process of a group has no copy.
        """
        found = self._differing({n: _summary(p) for n, p in self._copies.items()}, START, 0.0)
        if found is None:
            return None
        (stage, name), processes = found
        return (
            f"norm_groups: expected a pattern for {name} of stage {stage}, or copies of it on all "
            f"of the processes {list(processes)}, where it differs"
        )

    def gradients(self, stage: int) -> None:
        """Raises InputError if the gradients of a stage's copies differ between processes.

        Compares them only at the first call for the stage, which is in the first step.
        """
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
        """Returns the first parameter that differs between the processes of a group, and the group.

        The parameter is given by (stage, name), the group by its global ranks. Returns None if no
        parameter differs. ``own``: the summaries of this process. ``rel`` and ``least``: see
        :func:`_alike`.
        """
        alike = partial(_alike, rel=rel, least=least)
        # compare in all groups even after a difference, as the other processes wait there
        found = [(unlike(own, group, alike), processes_of(group)) for group in self._groups]
        return next(((key, processes) for key, processes in found if key is not None), None)
