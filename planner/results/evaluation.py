"""The evaluation of a schedule of any kind, as a row of every table of schedules."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from pipeloom.ir.cost.memory_footprint import Footprint, footprint
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.ir.cost.traffic import activation_traffic, over_wires, traffic
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, Status, Timing
from pipeloom.ir.units import amount, sufficient_size, unit_meant
from pipeloom.report.summaries import gap, scope, transfer_note, uncosted
from pipeloom.solver.core.schedule_cost import status_under
from pipeloom.solver.core.tolerances import ROUNDING

from .candidates import Candidate, least_bound

GROWING = ("t_f", "t_b", "t_w", "activation_bytes")
"""The fields of a stage that grow with the microbatch size."""
FIGURES = (
    "averaging", "iteration_time", "bubble_rate", "work_ratio", "peak_memory", "lower_bound_rate",
    "gap", "scope", "link_bytes", "balance", "assumed",
)  # fmt: skip
ON_CLUSTER = ("step_bubble_rate", "wire_use")


@dataclass(frozen=True, slots=True)
class Wire:
    """The busiest wire: bytes per step, the part of them that are weights and their gradients, and
    the time it is busy, in milliseconds per step."""

    name: str
    bytes: float
    weight_bytes: float
    time: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A schedule and its costs, or the reason why there is none. Values are computed on demand.

    ``name``: the family, or the schedule's name. ``planned``: the schedule, or None. ``why_not``:
    the reason why it cannot be used; None if it can. ``infeasible``: the memory that it would need.
    ``scheme``: the scheme of which it is a candidate; by default ``name``. ``candidates``: the
    placements from which its placement was chosen. ``assumed``: how stages were cut for it, in
    words; None if they were not.

    There are two times. :attr:`iteration_time` is the time of a single iteration: the objective's
    cost plus the exposed averaging of gradients over replicas. :attr:`step_time` is the interval
    between consecutive iterations without a barrier, with all messages waiting for their wires.
    Only the latter compares schedules that send different kinds of tensors.
    """

    name: str
    planned: Schedule | None = None
    why_not: str | None = None
    infeasible: InfeasibleError | None = None
    scheme: str = ""
    candidates: tuple[Candidate, ...] = ()
    assumed: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scheme", self.scheme or self.name)

    @property
    def schedule(self) -> Schedule:
        """The schedule. :attr:`planned` must not be None."""
        assert self.planned is not None, f"{self.name}: {self.why_not}"
        return self.planned

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
        """The times of its ops, and their costs."""
        return self.schedule.timing or simulate(self.schedule)

    @property
    def cost(self) -> float:
        """The objective's value (period or makespan), in milliseconds."""
        return self.timing.cost(self.objective)

    @property
    def bubble_rate(self) -> float:
        """The idle share of the objective's cost."""
        return self.timing.bubble_rate(self.objective)

    @property
    def iteration_time(self) -> float:
        """The time of a single iteration, including the averaging of gradients over replicas, in
        milliseconds."""
        return self.timing.iteration_time(self.objective)

    @property
    def averaging(self) -> float | None:
        """The time that averaging over replicas adds to the cost, in milliseconds; None without
        replicas."""
        return self.timing.exposed(self.objective) if any(self.timing.averages) else None

    @cached_property
    def step_time(self) -> float:
        """The interval between consecutive iterations in steady state, in milliseconds."""
        return step_between_ops(self.schedule)

    @property
    def step_bubble_rate(self) -> float:
        """The share of the step time in which ranks do not compute."""
        total = self.profile.ranks * self.step_time
        return 1.0 - self.timing.work / total if total > 0 else 0.0

    @property
    def work_ratio(self) -> float:
        """The total busy time of all ranks, divided by that of every F, B and W run once."""
        return self.timing.work / self.plain_work if self.plain_work > 0 else 1.0

    @property
    def plain_work(self) -> float:
        """The total time of every F, B and W run once, in milliseconds."""
        stages = self.profile.stages
        return self.schedule.problem.microbatches * sum(s.t_f + s.t_b + s.t_w for s in stages)

    @property
    def peak_memory(self) -> float:
        """Peak memory of activations on the fullest rank."""
        return max(self.timing.peak_memory)

    @property
    def lower_bound_rate(self) -> float | None:
        """The bubble rate of a schedule whose cost is the lower bound; None without a bound."""
        bound = self.schedule.report.lower_bound if self.schedule.report else None
        return 1 - self.timing.work / (self.profile.ranks * bound) if bound else None

    @property
    def least_bound(self) -> float | None:
        """The smallest lower bound over the placements from which its own was chosen."""
        report = self.schedule.report
        return least_bound(report.lower_bound if report else None, self.candidates)

    @property
    def least_status(self) -> Status:
        """Optimal if no schedule with any of these placements costs less."""
        least = self.least_bound
        return Status.FEASIBLE if least is None else status_under(least, self.cost)

    @property
    def gap(self) -> float | None:
        """(cost - lower bound) / cost; None without a lower bound."""
        return gap(self.schedule)

    @property
    def status(self) -> str:
        """``optimal``, ``feasible``, ``infeasible`` or ``unsupported``."""
        if self.planned is None:
            return "unsupported" if self.infeasible is None else "infeasible"
        return (self.planned.report.status if self.planned.report else Status.FEASIBLE).value

    @property
    def refusal(self) -> str:
        """Why there is no schedule, or why it cannot be used; empty if it can."""
        if self.infeasible is None:
            return self.why_not or ""
        error = self.infeasible
        if error.smallest is None:
            return str(error)
        of = " of device memory" if error.device else ""
        size, given = sufficient_size(error.smallest), error.given
        meant = unit_meant(given, error.smallest) if given else ""
        return f"infeasible: needs {size}{of} on rank {error.rank}{meant}"

    @property
    def uncosted(self) -> str | None:
        """Why its transfers of weights are not costed; None if they are, or if there are none."""
        return None if self.planned is None else uncosted(self.planned)

    @property
    def scope(self) -> str:
        """The set of schedules for which the lower bound holds."""
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
        """Bytes per iteration over the busiest link, both directions together; None if a size is
        unknown."""
        sizes: list[float | None] = []
        if self.passing is not Passing.WEIGHTS:
            sizes += [stage.activation_bytes for stage in self.profile.stages[:-1]]
        if self.passing is not Passing.ACTIVATIONS:
            sizes += [stage.weight_bytes for stage in self.profile.stages]
        return None if None in sizes else float(np.max(self.traffic + self.traffic.T))

    @cached_property
    def wire(self) -> Wire | None:
        """The busiest wire; None without links, or if nothing is sent."""
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
        """The share of the step time in which the busiest wire is busy; None without links."""
        if self.profile.links is None or self.step_time <= 0:
            return None
        return self.wire.time / self.step_time if self.wire else 0.0

    @cached_property
    def memory(self) -> Footprint:
        """Peak memory of each rank of the compiled program, by kind."""
        return footprint(self.schedule)

    @property
    def device_memory(self) -> float:
        """Memory of the fullest rank: activations, and all other memory whose size is known."""
        return max(self.memory.total)

    @property
    def balance(self) -> float | None:
        """The smallest peak memory of a rank, divided by the largest; None if nothing is held."""
        return min(self.timing.peak_memory) / self.peak_memory if self.peak_memory > 0 else None

    @property
    def over_device_memory(self) -> list[int]:
        """The ranks whose memory exceeds the profile's ``device_memory``."""
        return [rank for rank, held, size in self._on_devices if held > size * (1 + ROUNDING)]

    @property
    def _on_devices(self) -> list[tuple[int, float, float]]:
        """Rank, memory and ``device_memory``; empty without it, as :attr:`memory` compiles."""
        devices = self.profile.device_memory
        return [] if devices is None else [*zip(count(), self.memory.total, devices)]

    @property
    def _activations(self) -> list[tuple[int, float, float]]:
        """Rank, peak memory of activations and its limit."""
        return [*zip(count(), self.timing.peak_memory, self.schedule.problem.memory_limit)]

    def excess(self) -> str | None:
        """The memory that is exceeded, and on which rank; None if the schedule fits."""
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
        """The largest ratio of a rank's memory to its limit; above 1 if it does not fit."""
        return max(
            held / limit if limit > 0 else math.inf if held > 0 else 0.0
            for _, held, limit in (*self._activations, *self._on_devices)
        )

    def room(self) -> tuple[float, ...]:
        """Memory that each rank has for activations, by its memory limit and its device memory."""
        limits, devices = self.schedule.problem.memory_limit, self.profile.device_memory
        if devices is None:
            return limits
        beside = [t - a for t, a in zip(self.memory.total, self.memory.activations, strict=True)]
        return tuple(
            min(limit, max(0.0, device - held))
            for limit, device, held in zip(limits, devices, beside, strict=True)
        )

    def step_time_at(self, size: float) -> float:
        """The step time of the same order of ops with microbatches ``size`` times as large."""
        grown = self.profile.changed(lambda stage: stage.scaled(size, GROWING))
        profile = replace(grown, t_comm=None)  # times by links only
        problem = replace(self.schedule.problem, profile=profile)
        return step_between_ops(replace(self.schedule, problem=problem, timing=None))

    def to_dict(self, *, on_cluster: bool = False) -> dict[str, Any]:
        """The values in ``--json`` output. ``on_cluster``: with step time, traffic and device
        memory, for which the schedule is compiled."""
        head = {"scheme": self.scheme, "schedule": self.name, "status": self.status}
        if self.planned is not None:
            return head | self._figures() | (self._on_cluster() if on_cluster else {})
        return head | (self.infeasible.to_dict() if self.infeasible else {"reason": self.why_not})

    def _figures(self) -> dict[str, Any]:
        report, timing = self.schedule.report, self.timing
        found = {key: getattr(timing, key) for key in ("period", "makespan")}
        found |= {key: getattr(self, key) for key in FIGURES}
        return found | {
            "passing": self.passing.value,
            "bubble_rate_period": timing.bubble_rate(Objective.PERIOD),
            "bubble_rate_makespan": timing.bubble_rate(Objective.MAKESPAN),
            "placement": self.schedule.problem.placement.name,
            "lower_bound": report.lower_bound if report else None,
            "least_bound": self.least_bound,
            "method": report.method if report else None,
            "bound": report.bound if report else None,
            "solve_seconds": report.solve_seconds if report else None,
            "note": transfer_note(self.schedule),
        }

    def _on_cluster(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ON_CLUSTER} | {
            "step": self.step_time,
            "traffic": self.traffic.tolist(),
            "wire": None if self.wire is None else asdict(self.wire),
            "memory": asdict(self.memory) | {"total": self.memory.total},
            "over_device_memory": bool(self.over_device_memory),
        }
