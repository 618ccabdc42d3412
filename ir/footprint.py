"""What each rank has to hold at most while a schedule runs, by what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .profile import StageProfile
from .program import Program, TensorKind
from .schedule import Schedule, TravelKind
from .travel import owned, size


@dataclass(frozen=True, slots=True)
class Footprint:
    """In the profile's unit of memory, one number a rank; unknown sizes count as 0.

    ``activations``: the most that M_B and M_W sum up to. ``weights``, ``gradients``, ``optimizer``:
    of the stages that the rank owns. ``passing``: what travelling weights and gradients need beside
    them: receive buffers, and one stage more while it computes.
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


def footprint(program: Program) -> Footprint:
    """Of a compiled schedule, whose receive buffers are known."""
    schedule = program.schedule
    timing, profile = schedule.timing, schedule.problem.profile
    assert timing is not None, "the compiler times the schedule"

    def summed(size_of: Callable[[int], float]) -> tuple[float, ...]:
        return tuple(sum(map(size_of, stages)) for stages in owned(schedule))

    return Footprint(
        timing.peak_memory,
        summed(lambda s: size(profile, TravelKind.WEIGHT, s)),
        summed(lambda s: size(profile, TravelKind.GRADIENT, s)),
        summed(lambda s: _optimizer(profile.stages[s])),
        tuple(_buffers(program, rank) + _at_work(schedule, rank) for rank in range(profile.ranks)),
    )


_KINDS = {TensorKind.WEIGHT: TravelKind.WEIGHT, TensorKind.GRADIENT: TravelKind.GRADIENT}


def _buffers(program: Program, rank: int) -> float:
    """Of weights and gradients; those of activations are part of M_B."""
    profile = program.schedule.problem.profile
    return sum(
        size(profile, _KINDS[buffer.kind], buffer.stage)
        for buffer in program.buffers[rank]
        if buffer.kind in _KINDS
    )


def _at_work(schedule: Schedule, rank: int) -> float:
    """The largest weights, and the largest gradient, of the stages run but not owned."""
    if not schedule.transfers:
        return 0.0
    mine = owned(schedule)[rank]
    foreign = {op.stage for op in schedule.ops(rank)} - set(mine)
    profile = schedule.problem.profile
    return sum(max((size(profile, kind, s) for s in foreign), default=0.0) for kind in TravelKind)


def _optimizer(stage: StageProfile) -> float:
    return stage.optimizer_bytes or 0.0
