"""The evaluation of a schedule of any kind: one description for all tables of schedules."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
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

from ..explain.candidates import Candidate, least_bound

STRAIN = 1.1
GROWING = ("t_f", "t_b", "t_w", "activation_bytes")
"""Figures of a stage that grow with its microbatch."""
SENT = ("activation_bytes", "weight_bytes", "grad_bytes")
FIGURES = (
    "averaging", "iteration_time", "bubble_rate", "work_ratio", "peak_memory", "lower_bound_rate",
    "gap", "scope", "link_bytes", "balance", "assumed",
)  # fmt: skip
ON_CLUSTER = ("step_bubble_rate", "wire_use")


@dataclass(frozen=True, slots=True)
class Wire:
    """The busiest wire: bytes of a step over it, those of weights and their gradients among
    them, and the milliseconds that it is busy with them."""

    name: str
    bytes: float
    weight_bytes: float
    time: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A schedule with all that it costs, or why a scheme has none. Figures are computed when asked.

    ``name``: the family, or what the schedule is called. ``planned``: the schedule; None where
    there is none. ``why_not``: why it cannot be used, in words; None where it can.
    ``infeasible``: the memory that it would need. ``scheme``: what it is a candidate for, the
    ``name`` by default. ``candidates``: the placements that it was chosen from. ``assumed``: how
    stages were cut for the chosen one, in words; None where they were not.

    Two times are kept apart. :attr:`iteration_time` is one iteration by itself: the objective's
    cost, then what is left of averaging gradients over replicas. :attr:`step_time` is the interval
    between iterations that follow each other without a barrier while all messages wait for their
    wires: it alone compares schedules that pass different things.
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
        """The schedule; there is one where :attr:`planned` is not None."""
        assert self.planned is not None, f"{self.name}: {self.why_not}"
        return self.planned

    @property
    def profile(self) -> Profile:
        """The profile that it was planned for."""
        return self.schedule.problem.profile

    @property
    def objective(self) -> Objective:
        """Which cost counts."""
        return self.schedule.problem.objective

    @cached_property
    def timing(self) -> Timing:
        """When its ops run, and what they cost."""
        return self.schedule.timing or simulate(self.schedule)

    @property
    def cost(self) -> float:
        """The period or the makespan in ms, whichever is the objective."""
        return self.timing.cost(self.objective)

    @property
    def bubble_rate(self) -> float:
        """Idle time of the objective's cost, as a share."""
        return self.timing.bubble_rate(self.objective)

    @property
    def iteration_time(self) -> float:
        """Milliseconds of one iteration by itself, until gradients are averaged over replicas."""
        return self.timing.iteration_time(self.objective)

    @property
    def averaging(self) -> float | None:
        """The time that averaging over replicas adds to the cost; None without replicas."""
        return self.timing.exposed(self.objective) if any(self.timing.averages) else None

    @cached_property
    def step_time(self) -> float:
        """Milliseconds from one iteration to the next once they follow each other steadily."""
        return step_between_ops(self.schedule)

    @property
    def step_bubble_rate(self) -> float:
        """The share of the step time that the ranks do not compute."""
        total = self.profile.ranks * self.step_time
        return 1.0 - self.timing.work / total if total > 0 else 0.0

    @property
    def work_ratio(self) -> float:
        """The ranks' busy time in all, over the time of every F, B and W."""
        return self.timing.work / self.plain_work if self.plain_work > 0 else 1.0

    @property
    def plain_work(self) -> float:
        """The time of every F, B and W, by itself and once."""
        stages = self.profile.stages
        return self.schedule.problem.microbatches * sum(s.t_f + s.t_b + s.t_w for s in stages)

    @property
    def peak_memory(self) -> float:
        """Activations that the fullest rank holds at most."""
        return max(self.timing.peak_memory)

    @property
    def lower_bound_rate(self) -> float | None:
        """The bubble rate at the lower bound."""
        bound = self.schedule.report.lower_bound if self.schedule.report else None
        return 1 - self.timing.work / (self.profile.ranks * bound) if bound else None

    @property
    def least_bound(self) -> float | None:
        """The least lower bound of the placements that it was chosen from."""
        report = self.schedule.report
        return least_bound(report.lower_bound if report else None, self.candidates)

    @property
    def least_status(self) -> Status:
        """Optimal where no schedule of any of the placements costs less."""
        least = self.least_bound
        return Status.FEASIBLE if least is None else status_under(least, self.cost)

    @property
    def gap(self) -> float | None:
        """(cost - lower bound) / cost; None where no bound is known."""
        return gap(self.schedule)

    @property
    def status(self) -> str:
        """``optimal``, ``feasible``, ``infeasible`` or ``unsupported``."""
        if self.planned is None:
            return "unsupported" if self.infeasible is None else "infeasible"
        return (self.planned.report.status if self.planned.report else Status.FEASIBLE).value

    @property
    def refusal(self) -> str:
        """Why there is no schedule, or why it cannot be used; empty where it can."""
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
        """Why its transfers of weights have no real cost; None where they have, or are none."""
        return None if self.planned is None else uncosted(self.planned)

    @property
    def scope(self) -> str:
        """Which schedules the bound is about."""
        return scope(self.schedule.problem, paired=any(self.schedule.pairs))

    @property
    def passing(self) -> Passing:
        """The kind of tensors that ranks send each other."""
        return self.schedule.problem.placement.passing

    @cached_property
    def traffic(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Bytes from rank (row) to rank in an iteration, shape (P, P)."""
        return traffic(self.schedule)

    @property
    def link_bytes(self) -> float | None:
        """Bytes of an iteration over the busiest link, both directions together; None where a size
        is unknown."""
        sizes: list[float | None] = []
        if self.passing is not Passing.WEIGHTS:
            sizes += [stage.activation_bytes for stage in self.profile.stages[:-1]]
        if self.passing is not Passing.ACTIVATIONS:
            sizes += [stage.weight_bytes for stage in self.profile.stages]
        return None if None in sizes else float(np.max(self.traffic + self.traffic.T))

    @cached_property
    def wire(self) -> Wire | None:
        """None without links, or where nothing is sent."""
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
        """The share of the step time that the busiest wire is busy; None without links."""
        if self.profile.links is None or self.step_time <= 0:
            return None
        return self.wire.time / self.step_time if self.wire else 0.0

    @cached_property
    def memory(self) -> Footprint:
        """Memory that each rank of the compiled program holds at most, by kind."""
        return footprint(self.schedule)

    @property
    def device_memory(self) -> float:
        """Memory of the fullest rank: activations, and what sizes are known of the rest."""
        return max(self.memory.total)

    @property
    def balance(self) -> float | None:
        """The smallest peak memory of a rank over the largest; None where nothing is held."""
        return min(self.timing.peak_memory) / self.peak_memory if self.peak_memory > 0 else None

    @property
    def over_device_memory(self) -> list[int]:
        """The ranks that hold more than the profile's ``device_memory``."""
        if self.profile.device_memory is None:  # the schedule is compiled for what ranks hold
            return []
        pairs = zip(self.memory.total, self.profile.device_memory, strict=True)
        return [r for r, (held, size) in enumerate(pairs) if held > size * (1 + ROUNDING)]

    def excess(self) -> str | None:
        """Which memory it exceeds on which rank; None where it fits."""
        limits = self.schedule.problem.memory_limit
        for rank, (held, limit) in enumerate(zip(self.timing.peak_memory, limits, strict=True)):
            if held > limit * (1 + ROUNDING):
                return (
                    f"activations of {amount(held)} on rank {rank}, more than the memory limit "
                    f"{amount(limit)}"
                )
        for rank in self.over_device_memory:
            held, size = self.memory.total[rank], (self.profile.device_memory or ())[rank]
            return (
                f"needs {amount(held)} on rank {rank}, more than its device memory {amount(size)}"
            )
        return None

    @cached_property
    def fullness(self) -> float:
        """The most that a rank holds, as a share of what it may: above 1 where it does not fit."""
        devices = self.profile.device_memory
        limits = self.schedule.problem.memory_limit
        held = [*zip(self.timing.peak_memory, limits, strict=True)]
        held += [] if devices is None else zip(self.memory.total, devices, strict=True)
        return max(_share(*each) for each in held)

    def room(self) -> tuple[float, ...]:
        """Memory that each rank has for activations, by its limit and its device."""
        limits, devices = self.schedule.problem.memory_limit, self.profile.device_memory
        if devices is None:
            return limits
        beside = [t - a for t, a in zip(self.memory.total, self.memory.activations, strict=True)]
        return tuple(
            min(limit, max(0.0, device - held))
            for limit, device, held in zip(limits, devices, beside, strict=True)
        )

    def step_time_at(self, size: float) -> float:
        """The step time of the same order with microbatches ``size`` times as large."""
        grown = self.profile.changed(lambda stage: stage.scaled(size, GROWING))
        return step_between_ops(self._on(replace(grown, t_comm=None)))  # by the links alone

    @cached_property
    def strained(self) -> float:
        """The step time where all messages take a tenth longer: the less it grows the better."""
        laden = self.profile.changed(lambda stage: stage.scaled(STRAIN, SENT))
        return step_between_ops(self._on(laden))

    def _on(self, profile: Profile) -> Schedule:
        problem = replace(self.schedule.problem, profile=profile)
        return replace(self.schedule, problem=problem, timing=None)

    def to_dict(self, *, on_cluster: bool = False) -> dict[str, Any]:
        """The figures, as ``--json`` has them; ``on_cluster``: with step time, traffic and device
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


def _share(held: float, limit: float) -> float:
    """``held`` as a share of ``limit``, which may be 0 or none (inf)."""
    if limit > 0:
        return held / limit
    return float("inf") if held > 0 else 0.0
