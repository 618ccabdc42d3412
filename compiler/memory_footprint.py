"""The peak memory of each rank, by content: activations, weights, gradients and so on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.program import Program, TensorKind
from pipeloom.ir.model.schedule import Schedule, TransferKind, versions
from pipeloom.ir.model.transfers import owned, previous, size

from .compile import compile_schedule

_PASSED = {
    TensorKind.WEIGHT: TransferKind.WEIGHT,
    TensorKind.GRADIENT: TransferKind.GRADIENT,
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """The peak memory of each rank, in the profile's unit; unknown sizes count as 0.

    ``activations``: the peak of the sum of M_B's and M_W's. ``weights``, ``gradients``,
    ``optimizer``: memory of the stages that the rank owns or has a replica of, including all
    versions of the weights that it keeps. ``passing``: additional memory for stages whose weights
    are sent: the receive buffers, the weights of one more stage during its ops, and either that
    stage's gradient or the gradient sums that wait to be added to a D (a gradient accumulator that
    is sent, :mod:`pipeloom.ir.model.transfers`) or to be sent, whichever is larger.
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
    """The footprint of the program into which ``schedule`` is compiled.

    Raises InvalidScheduleError if the schedule can never run.
    """
    timing = timed(schedule).known_timing
    profile, homes = schedule.problem.profile, owned(schedule)

    def summed(size_of: Callable[[int], float]) -> tuple[float, ...]:
        return tuple(sum(map(size_of, stages)) for stages in homes)

    kept = versions(schedule)
    return Footprint(
        timing.peak_memory,
        summed(lambda s: kept[s] * size(profile, TransferKind.WEIGHT, s)),
        summed(lambda s: size(profile, TransferKind.GRADIENT, s)),
        summed(lambda s: profile.stages[s].optimizer_bytes or 0.0),
        _passing(compile_schedule(schedule)) if schedule.transfers else (0.0,) * len(homes),
    )


def _passing(program: Program) -> tuple[float, ...]:
    """The peak memory that each rank needs for stages that it does not own, (P,)."""
    schedule, found = program.schedule, []
    profile = schedule.problem.profile
    for rank, mine in enumerate(map(set, owned(schedule))):
        buffers = sum(
            size(profile, _PASSED[buffer.kind], buffer.stage)
            for buffer in program.buffers[rank]
            if buffer.kind in _PASSED
        )
        foreign = {op.stage for op in schedule.ops(rank)} - mine
        weights, gradient = (
            max((size(profile, kind, s) for s in foreign), default=0.0) for kind in TransferKind
        )
        found.append(buffers + weights + max(gradient, _sums(program, profile, rank, mine)))
    return tuple(found)


def _sums(program: Program, profile: Profile, rank: int, mine: set[int]) -> float:
    """The peak of the total size of a rank's gradient sums that are not in the buffer of a D.

    Such a sum exists from the first op that adds to a stage's gradient while no D of the stage is
    on the rank, until a D arrives, to which the sum is then added. If a D starts on this rank, the
    sum itself is sent as the D, and exists until its send has ended. ``mine``: the stages that the
    rank owns.
    """
    sizes = [size(profile, TransferKind.GRADIENT, s) for s in range(profile.num_stages)]
    earlier = previous(program.schedule.transfers)
    kept, here = set[int](), set[int]()  # stages with a sum, with a D here
    now = most = 0.0
    for item in program.instructions[rank]:
        if isinstance(item, ir.Compute):
            stage = item.op.stage
            if item.op.kind is not OpKind.F and stage not in kept | here | mine:
                kept.add(stage)
                now += sizes[stage]
        elif isinstance(item, ir.WaitReceive | ir.Send | ir.WaitSend):
            if item.tensor.kind is not TensorKind.GRADIENT:
                continue
            stage, own = item.tensor.stage, earlier[item.tensor.index] is None
            if isinstance(item, ir.WaitSend):
                now -= sizes[stage] if own else 0.0
                continue
            if stage in kept:
                kept.remove(stage)
                now -= sizes[stage]
            if isinstance(item, ir.WaitReceive):
                here.add(stage)
            else:
                here.discard(stage)
                now += sizes[stage] if own else 0.0
        most = max(most, now)
    return most
