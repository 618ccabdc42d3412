"""Values calculated from a schedule: costs, traffic and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from pipeloom.compiler.memory_footprint import Footprint, footprint
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.ir.cost.traffic import activation_traffic, over_wires, traffic
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, Timing
from pipeloom.ir.units import amount
from pipeloom.report.summaries import scope
from pipeloom.solver.core.tolerances import ROUNDING

GROWING = ("t_f", "t_b", "t_w", "activation_bytes")
"""The fields of a stage that are proportional to the microbatch size."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The busiest wire of a schedule.

    ``bytes``: bytes per step. ``weight_bytes``: the part of them that are weights and their
    gradients. ``time``: milliseconds per step in which the wire is busy.
    """

    name: str
    bytes: float
    weight_bytes: float
    time: float


class ScheduleFigures:
    """Costs, traffic and memory of a schedule, calculated on demand.

    There are two times of an iteration. :attr:`cost` is that of a single iteration: the value of
    the objective plus the exposed averaging of gradients over replicas. :attr:`step_time` is the
    interval between consecutive iterations without a barrier, in which all messages wait for their
    wires. Only :attr:`step_time` is comparable between schedules that send different kinds of
    tensors.
    """

    @property
    def schedule(self) -> Schedule:
        """The schedule whose values are calculated."""
        raise NotImplementedError

    @property
    def profile(self) -> Profile:
        """The profile of the schedule."""
        return self.schedule.problem.profile

    @property
    def objective(self) -> Objective:
        """The objective of the schedule."""
        return self.schedule.problem.objective

    @cached_property
    def timing(self) -> Timing:
        """The times of the schedule's ops and messages."""
        return self.schedule.timing or simulate(self.schedule)

    @property
    def objective_cost(self) -> float:
        """The value of the objective (period or makespan), in milliseconds, without averaging of
        gradients."""
        return self.timing.cost(self.objective)

    @property
    def bubble_rate(self) -> float:
        """The idle share of the ranks' time if an iteration takes :attr:`objective_cost`."""
        return self.timing.bubble_rate(self.objective)

    @property
    def cost(self) -> float:
        """Time of an iteration by the objective, in milliseconds, including the exposed averaging
        of gradients over replicas."""
        return self.timing.iteration_time(self.objective)

    @property
    def averaging(self) -> float | None:
        """The time that averaging of gradients over replicas adds to the cost, in milliseconds;
        None without replicas."""
        return self.timing.exposed(self.objective) if any(self.timing.averages) else None

    @cached_property
    def step_time(self) -> float:
        """The interval between consecutive iterations without a barrier, in steady state, in
        milliseconds."""
        return step_between_ops(self.schedule)

    @property
    def step_bubble_rate(self) -> float:
        """The share of the step time in which ranks do not compute, averaged over ranks."""
        total = self.profile.ranks * self.step_time
        return 1.0 - self.timing.work / total if total > 0 else 0.0

    @property
    def work_ratio(self) -> float:
        """The total busy time of all ranks, divided by the time of running each F, B and W once, as
        a separate op. Recomputation raises it above 1; fused pairs can lower it."""
        return self.timing.work / self.plain_work if self.plain_work > 0 else 1.0

    @property
    def plain_work(self) -> float:
        """The total time of running each F, B and W of all microbatches once, in milliseconds."""
        stages = self.profile.stages
        return self.schedule.problem.microbatches * sum(s.t_f + s.t_b + s.t_w for s in stages)

    @property
    def peak_memory(self) -> float:
        """Peak memory of activations on the rank where it is largest."""
        return max(self.timing.peak_memory)

    @property
    def scope(self) -> str:
        """The set of schedules for which the lower bound holds, in words."""
        return scope(self.schedule.problem, paired=any(self.schedule.pairs))

    @property
    def passing(self) -> Passing:
        """The kind of tensors that ranks send each other."""
        return self.schedule.problem.placement.passing

    @cached_property
    def traffic(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Bytes sent from rank (row) to rank (column) per iteration, shape (P, P)."""
        return traffic(self.schedule)

    @property
    def link_bytes(self) -> float | None:
        """Bytes per iteration over the busiest link, in both directions together; None if the size
        of a message is unknown."""
        sizes: list[float | None] = []
        if self.passing is not Passing.WEIGHTS:
            sizes += [stage.activation_bytes for stage in self.profile.stages[:-1]]
        if self.passing is not Passing.ACTIVATIONS:
            sizes += [stage.weight_bytes for stage in self.profile.stages]
        return None if None in sizes else float(np.max(self.traffic + self.traffic.T))

    @cached_property
    def wire(self) -> Wire | None:
        """The busiest wire; None if the profile has no links, or if nothing is sent."""
        links, profile = self.profile.links, self.profile
        if links is None:
            return None
        _, rate = links.matrices(profile.ranks)
        busy = over_wires(profile, self.traffic / (rate * 1e6))
        if not busy:
            return None
        name = max(busy, key=lambda wire: busy[wire])
        carried = over_wires(profile, self.traffic)[name]
        other = over_wires(profile, activation_traffic(self.schedule.problem)).get(name, 0.0)
        return Wire(name, carried, carried - other, busy[name])

    @property
    def wire_use(self) -> float | None:
        """The share of the step time in which the busiest wire is busy, 0 if nothing is sent; None
        if the profile has no links."""
        if self.profile.links is None or self.step_time <= 0:
            return None
        return self.wire.time / self.step_time if self.wire else 0.0

    @cached_property
    def memory(self) -> Footprint:
        """Peak memory of each rank of the compiled schedule, by kind."""
        return footprint(self.schedule)

    @property
    def device_memory(self) -> float:
        """Memory of the fullest rank: activations, and everything else whose size is known."""
        return max(self.memory.total)

    @property
    def balance(self) -> float | None:
        """The smallest peak memory of activations on a rank, divided by the largest; None if no
        rank holds activations."""
        return min(self.timing.peak_memory) / self.peak_memory if self.peak_memory > 0 else None

    @property
    def over_device_memory(self) -> list[int]:
        """The ranks whose memory exceeds the profile's ``device_memory``."""
        return [rank for rank, held, size in self._on_devices if held > size * (1 + ROUNDING)]

    @property
    def _on_devices(self) -> list[tuple[int, float, float]]:
        """For each rank its number, its memory and its ``device_memory``. If the profile has no
        ``device_memory``, the list is empty, and the schedule is not compiled."""
        devices = self.profile.device_memory
        return [] if devices is None else [*zip(count(), self.memory.total, devices)]

    @property
    def _activations(self) -> list[tuple[int, float, float]]:
        """For each rank its number, the peak memory of its activations, and its memory limit."""
        return [*zip(count(), self.timing.peak_memory, self.schedule.problem.memory_limit)]

    def excess(self) -> str | None:
        """Return, in words, the first rank that exceeds its memory, and by how much; None if the
        schedule fits."""
        for rank, held, limit in self._activations:
            if held > limit * (1 + ROUNDING):
                what = f"activations of {amount(held)} on rank {rank}"
                return f"{what}, more than the memory limit {amount(limit)}"
        for rank, held, size in self._on_devices:
            if held > size * (1 + ROUNDING):
                what = f"needs {amount(held)} on rank {rank}"
                return f"{what}, more than its device memory {amount(size)}"
        return None

    @cached_property
    def fullness(self) -> float:
        """The largest ratio of a rank's memory to its memory limit or device memory; above 1 if the
        schedule does not fit."""
        return max(
            held / limit if limit > 0 else math.inf if held > 0 else 0.0
            for _, held, limit in (*self._activations, *self._on_devices)
        )

    def room(self) -> tuple[float, ...]:
        """Return the memory that each rank has for activations, within its memory limit and its
        device memory."""
        limits, devices = self.schedule.problem.memory_limit, self.profile.device_memory
        if devices is None:
            return limits
        beside = [t - a for t, a in zip(self.memory.total, self.memory.activations, strict=True)]
        return tuple(
            min(limit, max(0.0, device - held))
            for limit, device, held in zip(limits, devices, beside, strict=True)
        )

    def step_time_at(self, size: float) -> float:
        """Return the step time, in milliseconds, of the same order of ops with microbatches
        ``size`` times as large."""
        grown = self.profile.changed(lambda stage: stage.scaled(size, GROWING))
        profile = replace(grown, t_comm=None)  # so that messages take the times of links
        problem = replace(self.schedule.problem, profile=profile)
        return step_between_ops(replace(self.schedule, problem=problem, timing=None))
