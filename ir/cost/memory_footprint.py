"""The peak memory of each rank, by content: activations, weights, gradients and so on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model.schedule import Schedule, TransferKind, versions
from ..model.transfers import owned, size
from .messages.passing_memory import passing_memory
from .simulator import timed


@dataclass(frozen=True, slots=True)
class Footprint:
    """The peak memory of each rank, in the profile's unit; unknown sizes count as 0.

    ``activations``: the peak of the sum of M_B's and M_W's. ``weights``, ``gradients``,
    ``optimizer``: memory of the stages that the rank owns or has a replica of, including all
    versions of the weights that it keeps. ``passing``: additional memory for stages whose weights
    are sent: the receive buffers, the weights of one more stage during its ops, and either that
    stage's gradient or the gradient sums that wait to be added to a D (a gradient accumulator that
    is sent, :mod:`..model.transfers`) or to be sent, whichever is larger.
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
    """The footprint of the program into which ``schedule`` is compiled (:mod:`pipeloom.compiler`).

    The number of receive buffers is minimal: the maximum number of tensors that a rank has received
    and not yet freed at a time. Raises InvalidScheduleError if the schedule can never run.
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
