"""The evaluation of one configuration: simulated schedules, lower bound, and a better schedule.

:func:`evaluate` takes and returns values that can be sent to another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import TypeAlias

import numpy as np

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import IntArray, OpKind, fields_of
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import OPTIMIZED, Report, Schedule, Transfer
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.schedule_cost import status_under
from pipeloom.solver.optimize import optimize

from ..clusters.cluster import Cluster
from ..models.model import Model
from ..prediction.memory import GIB, fullest, rooms_of
from ..prediction.setup import OpOrder, Setup, placement_of
from ..prediction.step import Memo, StepTimes
from ..solving.search import memory_held
from .configuration import Configuration


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A configuration with the results on it.

    ``lower_bound``: bound on the step time of all its schedules, in milliseconds; infinite if none
    can fit. ``step_ms``: infinite if no schedule that fits was found. ``memory_gib``: of the
    fullest device. ``schedule``: a family's name, or ``optimized``; then ``order`` holds the packed
    ops of each rank, and ``transfers`` the transfers of weights and gradients. ``tightest_gib``:
    the least memory of the schedules that were tried.
    """

    configuration: Configuration
    lower_bound: float
    step_ms: float = inf
    memory_gib: float = inf
    schedule: str = ""
    order: tuple[IntArray, ...] | None = None
    tightest_gib: float = inf
    transfers: tuple[Transfer, ...] = ()

    @property
    def rank(self) -> tuple[float, float, float]:
        """The sort key: step time to nine digits, then memory, then lower bound."""
        return float(f"{self.step_ms:.9g}"), self.memory_gib, self.lower_bound


Asked: TypeAlias = tuple[Model, Cluster, Evaluated]


def evaluate(asked: Asked) -> Evaluated:
    """The best of the configuration's families, and a lower bound that includes messages and
    memory.

    No family passes weights: for such configurations :func:`improve` finds the first schedule.
    """
    model, cluster, known = asked
    step = step_of(model, cluster, known.configuration)
    known = replace(known, lower_bound=_bound(step, known))
    if known.lower_bound == inf:
        return known
    tried = [*_tried(step, known.configuration)]
    known = replace(known, tightest_gib=min((memory for _, memory, _ in tried), default=inf))
    fitting = [each for each in tried if each[1] <= cluster.gpu.memory_gib]
    if not fitting:
        return known
    time, memory, family = min(fitting)
    return replace(known, step_ms=time, memory_gib=memory, schedule=family)


def simulated_ops(configuration: Configuration) -> int:
    """The number of ops that :func:`evaluate` simulates."""
    run = configuration.run
    ops = 3 if configuration.splits else 2
    return ops * run.stages * run.microbatches * len(configuration.families)


def improve(asked: tuple[Asked, SolveOptions]) -> Evaluated:
    """The configuration with the optimizer's best schedule, and its lower bound."""
    (model, cluster, known), options = asked
    own = known.configuration
    step = step_of(model, cluster, own)
    problem, weights = problem_of(step, own), own.passing is Passing.WEIGHTS
    if weights:
        options = replace(options, memory=memory_held)
    elif known.step_ms < inf:
        options = replace(options, start=order_of(step, known).schedule.order)
    try:
        schedule = optimize(problem, options)
    except InfeasibleError as error:
        if weights:
            needed = _needed(step, problem, error)
            return replace(known, tightest_gib=min(known.tightest_gib, needed))
        return replace(known, lower_bound=inf) if known.step_ms == inf else known
    certified = _with_ends(step, schedule.known_report.lower_bound or 0.0)
    fused = not (own.splits or weights)
    order = tuple(map(_joined, schedule.order)) if fused else schedule.order
    planned = replace(step, planned=OpOrder(replace(schedule, order=order, problem=problem)))
    memory = fullest(planned)
    tightest = min(known.tightest_gib, memory) if weights else known.tightest_gib
    bound = max(known.lower_bound, certified)
    known = replace(known, lower_bound=bound, tightest_gib=tightest)
    if memory > cluster.gpu.memory_gib or planned.time >= known.step_ms:
        return known
    found = replace(known, schedule=OPTIMIZED, order=order, transfers=schedule.transfers)
    return replace(found, step_ms=planned.time, memory_gib=memory)


def _needed(step: StepTimes, problem: Problem, error: InfeasibleError) -> float:
    """Memory that the schedule would need, in GiB of the device that lacks the most. Raises
    ``error`` again if device memory is not the cause."""
    devices, smallest, rank = problem.profile.device_memory, error.smallest, error.rank
    if not error.device or devices is None or smallest is None or rank is None:
        raise error
    reserve = 1 + step.cluster.efficiency.fragmentation
    return step.cluster.gpu.memory_gib + (smallest - devices[rank]) * reserve / GIB


def step_of(model: Model, cluster: Cluster, configuration: Configuration) -> StepTimes:
    """The times of the configuration's step, with the family that has its placement."""
    setup = Setup(model, configuration.run, cluster)
    remat, offload, passing = configuration.remat, configuration.offload, configuration.passing
    return StepTimes(setup, cluster, _memo(cluster), remat=remat, offload=offload, passing=passing)


def planned_step(model: Model, cluster: Cluster, found: Evaluated) -> StepTimes:
    """The times of the configuration's step, with the schedule that was found."""
    step = step_of(model, cluster, found.configuration)
    if found.order is None:
        return step.scheduled(found.schedule)
    return replace(step, planned=order_of(step, found))


def certified(step: StepTimes) -> Schedule:
    """The step's schedule with its devices' memory as limit, and a lower bound on its makespan in
    its report."""
    made = step.schedule
    rooms = rooms_of(step)
    profile = replace(made.problem.profile, memory_limit=rooms)
    problem = replace(
        made.problem, profile=profile, memory_limit=rooms, objective=Objective.MAKESPAN
    )
    bound = lower_bound(problem)
    made = timed(replace(made, problem=problem, timing=None))
    cost = made.known_timing.makespan
    report = replace(
        made.known_report,
        objective=Objective.MAKESPAN,
        lower_bound=min(bound.value, cost),
        bound=bound.name,
        status=status_under(bound.value, cost),
    )
    return replace(made, report=report)


def problem_of(step: StepTimes, configuration: Configuration) -> Problem:
    """The problem for the optimizer. If B and W are one op, B takes the time of both and W none. If
    weights are passed, schedules may do either."""
    rooms, microbatches = rooms_of(step), configuration.run.microbatches
    if configuration.passing is Passing.WEIGHTS:
        pairs = zip(rooms, step.setup.states, strict=True)
        devices = tuple(room + states.kept for room, states in pairs)
        profile = replace(step.profile_for(False), device_memory=devices)
    else:
        profile = step.safe_profile if configuration.splits else _fused(step.profile_for(False))
    profile = replace(profile, memory_limit=rooms)
    placed = placement_of(configuration.run, configuration.passing)
    return Problem(profile, microbatches, placed, rooms, Objective.MAKESPAN)


def _fused(profile: Profile) -> Profile:
    return profile.changed(lambda stage: replace(stage, t_b=stage.fused, t_w=0.0, m_w=0.0))


def _bound(step: StepTimes, known: Evaluated) -> float:
    if known.configuration.run.pp == 1:
        return known.lower_bound
    try:
        makespan = lower_bound(problem_of(step, known.configuration)).value
    except InfeasibleError:
        return inf
    return max(known.lower_bound, _with_ends(step, makespan))


def _with_ends(step: StepTimes, makespan: float) -> float:
    """Lower bound on the step time, in milliseconds, from a lower bound ``makespan`` on its ops."""
    exposed = min(end.averaging.exposed for end in step.ends)
    stepping = max(end.optimizer for end in step.ends)
    return makespan + exposed + stepping + step.cluster.efficiency.step_ms


def _tried(step: StepTimes, configuration: Configuration) -> Iterator[tuple[float, float, str]]:
    """Step time in milliseconds, memory of the fullest device in GiB, and name for each family."""
    for family in configuration.families:
        own = step.scheduled(family)
        with suppress(InputError):  # the family needs more microbatches
            yield own.time, fullest(own), family


def order_of(step: StepTimes, known: Evaluated) -> OpOrder:
    """The order of ops of the schedule that was found."""
    if known.order is None:
        return step.scheduled(known.schedule).setup.order_for(step.profile)
    run = known.configuration.run
    placed, room = placement_of(run, known.configuration.passing), (inf,) * run.pp
    problem = Problem(step.profile, run.microbatches, placed, room, Objective.MAKESPAN)
    report = Report(Objective.MAKESPAN, OPTIMIZED)
    return OpOrder(Schedule(problem, known.order, known.transfers, report))


def _joined(order: IntArray) -> IntArray:
    """The order with each B and its W merged into a BW."""
    kinds, _, _ = fields_of(order)
    backward = np.where(kinds == OpKind.B, order - OpKind.B + OpKind.BW, order)
    joined: IntArray = backward[kinds != OpKind.W]
    return joined


@lru_cache(maxsize=8)
def _memo(cluster: Cluster) -> Memo:
    return {}
