"""Memory that each rank holds at most while a schedule runs, by kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model.profile import StageProfile
from ..model.schedule import Schedule, TransferKind, versions
from ..model.transfers import owned, size
from .messages.passing_memory import passing_memory
from .simulator import timed


@dataclass(frozen=True, slots=True)
class Footprint:
    """In the profile's unit of memory, one number per rank; unknown sizes count as 0.

    ``activations``: the most that M_B and M_W sum up to. ``weights``, ``gradients``, ``optimizer``:
    of the stages that the rank owns, weights in all versions that it keeps. ``passing``: what
    streamed weights and gradients need beside them: receive buffers, the weights of one stage
    more while it computes, and that stage's gradient or all sums that are kept for D's yet to come
    or to leave, whichever is more.
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
    """The footprint of the program that a schedule compiles to, whose receive buffers are as few
    as there are tensors received and not yet freed (:mod:`pipeloom.compiler`).

    Raises InvalidScheduleError where it can never run.
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
        summed(lambda s: _optimizer(profile.stages[s])),
        passing_memory(schedule, homes) if schedule.transfers else (0.0,) * len(homes),
    )


def _optimizer(stage: StageProfile) -> float:
    return stage.optimizer_bytes or 0.0
