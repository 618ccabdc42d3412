"""Values calculated from a schedule: costs, traffic and memory."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from pipeloom.compiler.memory_footprint import Footprint, footprint
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.ir.cost.traffic import traffic
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, Timing
from pipeloom.ir.units import amount
from pipeloom.report.summaries import scope
from pipeloom.solver.core.tolerances import ROUNDING


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
