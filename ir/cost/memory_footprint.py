"""Memory that each rank holds at most while a schedule runs, by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..model.ops import OpKind
from ..model.profile import StageProfile
from ..model.program import Compute, Program, Send, Tensor, TensorKind, WaitReceive, WaitSend
from ..model.schedule import Schedule, TransferKind
from ..model.transfers import owned, previous, size
from ..model.weight_versions import versions


@dataclass(frozen=True, slots=True)
class Footprint:
    """In the profile's unit of memory, one number a rank; unknown sizes count as 0.

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


def footprint(program: Program) -> Footprint:
    """The footprint of a compiled schedule, whose receive buffers are known."""
    schedule = program.schedule
    timing, profile = schedule.timing, schedule.problem.profile
    assert timing is not None, "the compiler times the schedule"

    homes, earlier = owned(schedule), previous(schedule.transfers)

    def summed(size_of: Callable[[int], float]) -> tuple[float, ...]:
        return tuple(sum(map(size_of, stages)) for stages in homes)

    kept = versions(schedule)
    return Footprint(
        timing.peak_memory,
        summed(lambda s: kept[s] * size(profile, TransferKind.WEIGHT, s)),
        summed(lambda s: size(profile, TransferKind.GRADIENT, s)),
        summed(lambda s: _optimizer(profile.stages[s])),
        tuple(_passing(program, rank, set(mine), earlier) for rank, mine in enumerate(homes)),
    )


def _passing(program: Program, rank: int, mine: set[int], earlier: Sequence[int | None]) -> float:
    """Memory beside the owned stages, ``mine``; ``earlier``: each transfer's one before it."""
    weights, gradient = _at_work(program.schedule, rank, mine)
    return _buffers(program, rank) + weights + max(gradient, _kept(program, rank, mine, earlier))


_KINDS = {TensorKind.WEIGHT: TransferKind.WEIGHT, TensorKind.GRADIENT: TransferKind.GRADIENT}


def _buffers(program: Program, rank: int) -> float:
    """Bytes of receive buffers for weights and gradients; those of activations are part of M_B."""
    profile = program.schedule.problem.profile
    return sum(
        size(profile, _KINDS[buffer.kind], buffer.stage)
        for buffer in program.buffers[rank]
        if buffer.kind in _KINDS
    )


def _at_work(schedule: Schedule, rank: int, mine: set[int]) -> tuple[float, float]:
    """The largest weights, and the largest gradient, of the stages run but not owned."""
    if not schedule.transfers:
        return 0.0, 0.0
    foreign = {op.stage for op in schedule.ops(rank)} - mine
    profile = schedule.problem.profile
    weights, gradient = (
        max((size(profile, kind, s) for s in foreign), default=0.0) for kind in TransferKind
    )
    return weights, gradient


def _kept(program: Program, rank: int, mine: set[int], earlier: Sequence[int | None]) -> float:
    """The most that the rank keeps, at one time, of sums that are not in a D's buffer.

    A sum is there from the first op that adds to a stage's gradient while no D of it is, until a D
    comes and takes it over; where D sets out from this rank the sum itself is what leaves.
    """
    schedule = program.schedule
    kept: set[int] = set()
    leaving: set[Tensor] = set()
    here: set[int] = set()  # stages whose D is
    most = 0.0
    for item in program.instructions[rank]:
        match item:
            case Compute(op) if op.kind is not OpKind.F and op.stage not in mine | here:
                kept.add(op.stage)
            case WaitReceive(Tensor(TensorKind.GRADIENT, stage)) if stage not in mine:
                kept.discard(stage)
                here.add(stage)
            case Send(Tensor(TensorKind.GRADIENT, stage, index) as tensor):
                kept.discard(stage)
                here.discard(stage)
                if earlier[index] is None:
                    leaving.add(tensor)
            case WaitSend(tensor):
                leaving.discard(tensor)
        sums = [*kept, *(tensor.stage for tensor in leaving)]
        most = max(
            most, sum(size(schedule.problem.profile, TransferKind.GRADIENT, s) for s in sums)
        )
    return most


def _optimizer(stage: StageProfile) -> float:
    return stage.optimizer_bytes or 0.0
