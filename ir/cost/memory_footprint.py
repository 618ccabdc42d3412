"""The peak memory of each rank, by kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model.schedule import Schedule, TransferKind, versions
from ..model.transfers import owned, size
from .messages.passing_memory import passing_memory
from .simulator import timed


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory in the profile's unit, one number per rank; unknown sizes count as 0.

    ``activations``: the peak of the sum of M_B and M_W. ``weights``, ``gradients``, ``optimizer``:
    of the stages that the rank owns, with all versions of the weights that it keeps. ``passing``:
    what streamed stages need in addition: receive buffers, the weights of one more stage during its
    ops, and the larger of that stage's gradient and all gradient sums that wait for a D or for
    being sent.
    """

    activations: tuple[float, ...]
    weights: tuple[float, ...]
    gradients: tuple[float, ...]
    optimizer: tuple[float, ...]
    passing: tuple[float, ...]

    @property
    def total(self) -> tuple[float, ...]:
        parts = (self.activations, self.weights, self.gradients, self.optimizer, self.passing)
        return tuple(map(sum, zip(*parts, strict=True)))


def footprint(schedule: Schedule) -> Footprint:
    """The footprint of the program that a schedule compiles to (:mod:`pipeloom.compiler`).

    The program has no more receive buffers than tensors that are received and not yet freed at one
    time. Raises InvalidScheduleError if the schedule can never run.
    """
    schedule = timed(schedule)
    timing, profile, homes = schedule.timing, schedule.problem.profile, owned(schedule)
    assert timing is not None

    def summed(size_of: Callable[[int], float]) -> tuple[float, ...]:
        return tuple(sum(map(size_of, stages)) for stages in homes)

    kept = versions(schedule)
    return Footprint(
        timing.peak_memory,
        summed(lambda s: kept[s] * size(profile, TransferKind.WEIGHT, s)),
        summed(lambda s: size(profile, TransferKind.GRADIENT, s)),
        summed(lambda s: profile.stages[s].optimizer_bytes or 0.0),
        passing_memory(schedule, homes) if schedule.transfers else (0.0,) * len(homes),
    )
