"""The smallest memory with which some cut of the layers has a schedule, for a given placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.units import sufficient_size

from ..bounds.feasibility import needs
from ..core.tolerances import ROUNDING
from ..placement.replication import KEPT
from ..placement.search import kept
from .cuts import Cut, Cutter

MOST_CUTS = 2000  # maximum number of cuts tried if the minimum cannot be computed exactly


@dataclass(frozen=True, slots=True)
class MinMemory:
    """The smallest memory limit, equal on all ranks, with which some cut has a schedule.

    ``limit``: the limit: of memory for activations or, if ``device`` is True, of all memory on a
    device. ``cut``: a cut that needs only this much. ``rank``: the rank that needs this much with
    ``cut``. ``proven``: whether it is proven that no cut needs less. ``alone``: whether only
    ``cut`` was considered.
    """

    limit: float
    rank: int
    cut: Cut
    proven: bool
    device: bool = False
    alone: bool = False

    def __str__(self) -> str:
        cut = "this cut does not fit" if self.alone else "no cut fits"
        what = "device_memory" if self.device else "the memory limit"
        which = "feasible one" if self.proven or self.alone else "one found that is feasible"
        least = f"the smallest {which} is {sufficient_size(self.limit)}, for rank {self.rank}"
        return f"{cut} in {what}; {least}"


def smallest(cutter: Cutter, placement: Placement, cut: Cut | None = None) -> MinMemory:
    """Return the smallest memory limit for activations with which some cut has a schedule.

    If no cut was found that fits in the profile's device memory, return the smallest device memory
    with which some cut has a schedule instead. ``cut``: the only cut to consider; None means all
    cuts. With one stage per rank, dynamic programming finds an optimal cut; otherwise local search
    moves layers between stages.
    """
    for device in (False, True):
        found = _Needs(cutter, placement, device).least(cut)
        if found is not None:
            return found
    raise AssertionError("some device is large enough")


@dataclass(frozen=True)
class _Needs:
    """The memory that the ranks of a placement need for a cut.

    ``device``: whether that is all memory, with weights, gradients and optimizer state; otherwise
    it is only the memory for activations.
    """

    cutter: Cutter
    placement: Placement
    device: bool

    def least(self, given: Cut | None) -> MinMemory | None:
        """Return the smallest memory limit with which some cut has a schedule.

        ``given``: the only cut to consider; None means all cuts. Returns None if no cut was found
        that fits in the profile's device memory.
        """
        cut = given or self.cutter.best_path(self._price, np.maximum)
        if cut is None:
            return None
        alone = len(set(self.placement.owners)) == self.cutter.stages
        if given is None and not alone:
            cut = self._descended([cut, self.cutter.even() or cut])
        over, needed = self.of(cut)
        if over:
            return None
        limit = float(needed.max())
        proven = given is None and (alone or limit <= self._bound() * (1 + ROUNDING))
        rank = int(needed.argmax())
        return MinMemory(limit, rank, cut, proven, self.device, alone=given is not None)

    def of(self, cut: Cut) -> tuple[float, FloatArray]:
        """Return the lack of device memory, and the memory that each rank needs, shape (P,).

        The lack is that of the rank that lacks the most; it is 0 if ``cut`` fits on all devices, or
        if :attr:`device` is set.
        """
        profile, placement = self.cutter.profile.cut(cut), self.placement
        free = (float("inf"),) * profile.ranks
        needed = needs(Problem(profile, 1, placement, free))
        ends = (*cut[1:], self.cutter.number)
        stays = np.zeros(profile.ranks)
        for rank, first, end in zip(placement.owners, cut, ends, strict=True):
            stays[rank] += self._stays[first, end]
        if self.device:
            return 0.0, needed + stays
        if profile.device_memory is None:
            return 0.0, needed
        lacks = needed + stays - np.array(profile.device_memory) * (1 + ROUNDING)
        return max(0.0, float(lacks.max())), needed

    def _price(self, stage: int) -> FloatArray:
        """Return the memory that ``stage`` needs for one microbatch with each run of layers.

        The result has shape (L + 1, L + 1), indexed by first layer and end (exclusive). It is
        infinite for runs of layers that may not be a stage, or that do not fit on the device of the
        stage's rank.
        """
        needed = self.cutter.runs("m_b") + self.cutter.penalty()
        if self.device:
            return np.asarray(needed + self._stays)
        device = self.cutter.profile.cluster.device_memory
        if device is None:
            return needed
        room = device[self.placement.owners[stage]] * (1 + ROUNDING)
        return np.where(needed + self._stays <= room, needed, np.inf)

    @cached_property
    def _stays(self) -> FloatArray:
        """The memory of the weights, gradients and optimizer state of each run of layers.

        The result has shape (L + 1, L + 1), indexed by first layer and end (exclusive). Unknown
        sizes count as 0.
        """
        return np.asarray(sum(self.cutter.runs(key) for key in KEPT))

    def _bound(self) -> float:
        """Return a lower bound, for all cuts, on the memory of the rank that needs the most.

        It is the larger one of two: the minimum, over all cuts, of the need of the largest stage;
        and the mean need of the ranks. The second is left out if layers can be recomputed or
        offloaded, because then M_B need not be held.
        """
        layers, largest = (
            self.cutter.profile.layers,
            self.cutter.best_value(self._price, np.maximum),
        )
        if any(layer.t_r is not None or layer.m_o is not None for layer in layers):
            return largest
        held = sum(layer.m_b + (kept(layer) if self.device else 0.0) for layer in layers)
        return max(largest, held / self.cutter.profile.ranks)

    def _descended(self, starts: Sequence[Cut]) -> Cut:
        """Return the cut that a local search finds, starting from the best of ``starts``.

        The search moves to neighboring cuts. It ends when no neighbor is better, or when
        :data:`MOST_CUTS` cuts have been tried.
        """
        tried = 0
        best = min(starts, key=self._rating)
        rating, found = self._rating(best), True
        while found and tried < MOST_CUTS:
            found = False
            for cut in islice(self.cutter.neighbours(best), MOST_CUTS - tried):
                tried += 1
                if (other := self._rating(cut)) < rating:
                    best, rating, found = cut, other, True
                    break
        return best

    def _rating(self, cut: Cut) -> tuple[float, ...]:
        over, needed = self.of(cut)
        return (over, *sorted(needed.tolist(), reverse=True))
