"""One configuration: its schedules simulated, its bound, and a better schedule where there is one.

:func:`evaluate` is a function of values that can be sent to another process.
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
    """A configuration, and what is known of it. ``step_ms``: infinite where no schedule was found
    that fits.

    ``lower_bound``: milliseconds that no schedule of the configuration is below, infinite where
    none can fit. ``memory_gib``: of the fullest device. ``schedule``: a family's name, or
    ``optimized``, whose packed ops of each rank are ``order``, and whose weights and gradients that
    are passed ``transfers``. ``tightest_gib``: the least memory of the schedules that were tried.
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
        """The shortest step is first; of those equal to nine digits the one in less memory."""
        return float(f"{self.step_ms:.9g}"), self.memory_gib, self.lower_bound


Asked: TypeAlias = tuple[Model, Cluster, Evaluated]


def evaluate(asked: Asked) -> Evaluated:
    """The best of the configuration's families, and its bound with messages and memory counted.

    Where weights are passed there is no family: :func:`improve` finds the first schedule, too.
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
    """Ops of the schedules that :func:`evaluate` simulates."""
    run = configuration.run
    ops = 3 if configuration.splits else 2
    return ops * run.stages * run.microbatches * len(configuration.families)


def improve(asked: tuple[Asked, SolveOptions]) -> Evaluated:
    """The configuration with the best schedule that the optimizer finds, and its bound."""
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
    """GiB of the device that lacks most of what was tried. Raises the error where that is not
    why."""
    devices, smallest, rank = problem.profile.device_memory, error.smallest, error.rank
    if not error.device or devices is None or smallest is None or rank is None:
        raise error
    reserve = 1 + step.cluster.efficiency.fragmentation
    return step.cluster.gpu.memory_gib + (smallest - devices[rank]) * reserve / GIB


def step_of(model: Model, cluster: Cluster, configuration: Configuration) -> StepTimes:
    """The times of the configuration's step, with its placement's own family."""
    setup = Setup(model, configuration.run, cluster)
    remat, offload, passing = configuration.remat, configuration.offload, configuration.passing
    return StepTimes(setup, cluster, _memo(cluster), remat=remat, offload=offload, passing=passing)


def planned_step(model: Model, cluster: Cluster, found: Evaluated) -> StepTimes:
    """The same with the schedule that was found."""
    step = step_of(model, cluster, found.configuration)
    if found.order is None:
        return step.scheduled(found.schedule)
    return replace(step, planned=order_of(step, found))


def certified(step: StepTimes) -> Schedule:
    """The step's schedule within the memory of its devices, with a bound on its makespan."""
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
    """The configuration's schedules: where B and W are one op, B takes both and W nothing; where
    weights are passed they may be either."""
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
    """Milliseconds of a step whose ops take no less than ``makespan``."""
    exposed = min(end.averaging.exposed for end in step.ends)
    stepping = max(end.optimizer for end in step.ends)
    return makespan + exposed + stepping + step.cluster.efficiency.step_ms


def _tried(step: StepTimes, configuration: Configuration) -> Iterator[tuple[float, float, str]]:
    """Milliseconds of a step and GiB of the fullest device with each family."""
    for family in configuration.families:
        own = step.scheduled(family)
        with suppress(InputError):  # of families that cannot do with so few microbatches
            yield own.time, fullest(own), family


def order_of(step: StepTimes, known: Evaluated) -> OpOrder:
    """The order of ops that was found."""
    if known.order is None:
        return step.scheduled(known.schedule).setup.order_for(step.profile)
    run = known.configuration.run
    placed, room = placement_of(run, known.configuration.passing), (inf,) * run.pp
    problem = Problem(step.profile, run.microbatches, placed, room, Objective.MAKESPAN)
    report = Report(Objective.MAKESPAN, OPTIMIZED)
    return OpOrder(Schedule(problem, known.order, known.transfers, report))


def _joined(order: IntArray) -> IntArray:
    """The order with each B and its W as one op."""
    kinds, _, _ = fields_of(order)
    backward = np.where(kinds == OpKind.B, order - OpKind.B + OpKind.BW, order)
    joined: IntArray = backward[kinds != OpKind.W]
    return joined


@lru_cache(maxsize=8)
def _memo(cluster: Cluster) -> Memo:
    return {}
