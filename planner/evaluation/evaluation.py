"""What a schedule of any kind costs on its cluster: one measure for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.memory_footprint import Footprint, footprint
from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.ir.cost.traffic import activation_traffic, over_wires, traffic
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, Timing
from pipeloom.ir.units import amount

from ..passing.crossovers import enlarged, laden

ROUNDING = 1e-9
LEVEL = 2e-3  # of a step: nearer than any profile is to the truth
STRAIN = 1.1


@dataclass(frozen=True, slots=True)
class Wire:
    """The busiest wire: bytes of a step over it, those of weights and their gradients among
    them, and the milliseconds that it is busy with them."""

    name: str
    bytes: float
    weight_bytes: float
    time: float


@dataclass(frozen=True)
class Judged:
    """A schedule of ``scheme``, with its step time in ms, back to back and with contention."""

    scheme: str
    schedule: Schedule
    step: float

    @classmethod
    def of(cls, scheme: str, schedule: Schedule) -> Judged:
        return cls(scheme, schedule, step_between_ops(schedule))

    @property
    def family(self) -> str:
        report = self.schedule.report
        return report.family if report is not None else ""

    @property
    def profile(self) -> Profile:
        return self.schedule.problem.profile

    @property
    def timing(self) -> Timing:
        assert self.schedule.timing is not None, "schemes time their schedules"
        return self.schedule.timing

    @property
    def bubble(self) -> float:
        """The share of the step that the ranks do not compute."""
        return 1.0 - self.timing.work / (self.profile.ranks * self.step) if self.step > 0 else 0.0

    @cached_property
    def wire(self) -> Wire | None:
        """None without links, or where nothing travels."""
        links, profile = self.profile.links, self.profile
        if links is None:
            return None
        sent = traffic(self.schedule)
        _, rate = links.matrices(profile.ranks)
        busy, carried = over_wires(profile, sent / (rate * 1e6)), over_wires(profile, sent)
        if not busy:
            return None
        name = max(busy, key=lambda wire: busy[wire])
        other = over_wires(profile, activation_traffic(self.schedule.problem))
        return Wire(name, carried[name], carried[name] - other.get(name, 0.0), busy[name])

    @property
    def wire_use(self) -> float | None:
        """The share of the step that the busiest wire is busy."""
        return None if self.wire is None or self.step <= 0 else self.wire.time / self.step

    @cached_property
    def memory(self) -> Footprint:
        return footprint(compile_schedule(self.schedule))

    @property
    def held(self) -> float:
        """What the fullest rank holds: activations, and what sizes are known of the rest."""
        return max(self.memory.total)

    def too_much(self) -> str | None:
        """Which memory it exceeds on which rank; None where it fits."""
        limits = self.schedule.problem.memory_limit
        for rank, (held, limit) in enumerate(zip(self.timing.peak_memory, limits, strict=True)):
            if held > limit * (1 + ROUNDING):
                return (
                    f"activations of {amount(held)} on rank {rank}, more than the memory limit "
                    f"{amount(limit)}"
                )
        for rank, device in enumerate(self.profile.device_memory or ()):
            held = self.memory.total[rank]
            if held > device * (1 + ROUNDING):
                return (
                    f"needs {amount(held)} on rank {rank}, more than its device memory "
                    f"{amount(device)}"
                )
        return None

    @cached_property
    def fullness(self) -> float:
        """The most that a rank holds, as a share of what it may: above 1 where it does not fit."""
        devices = self.profile.device_memory
        held = [*zip(self.timing.peak_memory, self.schedule.problem.memory_limit, strict=True)]
        held += [] if devices is None else zip(self.memory.total, devices, strict=True)
        return max(_share(*each) for each in held)

    def room(self) -> tuple[float, ...]:
        """What device memory and the limit leave on each rank for activations."""
        limits, devices = self.schedule.problem.memory_limit, self.profile.device_memory
        if devices is None:
            return limits
        beside = [t - a for t, a in zip(self.memory.total, self.memory.activations, strict=True)]
        return tuple(
            min(limit, max(0.0, device - held))
            for limit, device, held in zip(limits, devices, beside, strict=True)
        )

    def step_at(self, size: float) -> float:
        """The step time with microbatches ``size`` times as large: weights are not."""
        return self._step_with(enlarged(self.profile, size))

    @cached_property
    def strained(self) -> float:
        """The step time where all messages take a tenth longer: how much slack its transfers
        have."""
        return self._step_with(laden(self.profile, STRAIN))

    def _step_with(self, profile: Profile) -> float:
        problem = replace(self.schedule.problem, profile=profile)
        return step_between_ops(replace(self.schedule, problem=problem, timing=None))


def _share(held: float, limit: float) -> float:
    """``held`` as a share of ``limit``, which may be 0 or none (inf)."""
    if limit > 0:
        return held / limit
    return float("inf") if held > 0 else 0.0


def fastest(candidates: Sequence[Judged]) -> Judged | None:
    """The one with the shortest step of those that fit; None where none does.

    No profile is exact: of steps that are ``LEVEL`` it is the one that is shortest under strain,
    and of those that are equal there the one whose fullest rank holds least.
    """
    level: list[Judged] = []
    for judged in sorted(candidates, key=lambda one: one.step):
        if level and judged.step > level[0].step * (1 + LEVEL):
            break
        if judged.too_much() is None:
            level.append(judged)
    if len(level) > 1:
        most = min(one.strained for one in level) * (1 + ROUNDING)
        level = [one for one in level if one.strained <= most]
    return min(level, key=lambda one: one.held) if len(level) > 1 else next(iter(level), None)
