"""The evaluation of one configuration: its families are simulated, its step time is bounded, and
the optimizer searches for a better schedule.

The arguments and results of :func:`evaluate` and :func:`improve` can be sent to another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

import numpy as np

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import IntArray, OpKind, fields_of
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import OPTIMIZED, Report, Schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.optimize import optimize

from ..clusters.cluster import Cluster
from ..models.model import Model
from ..prediction.memory import fullest, rooms_of
from ..prediction.rates import Rates
from ..prediction.setup import Setup
from ..prediction.step import PredictedStep
from ..routes.passing import certified as with_bound
from .configuration import Configuration


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A configuration with the results of its evaluation so far.

    ``lower_bound``: lower bound on the step time of all its schedules, in milliseconds; infinite if
    none can fit in memory. ``step_ms``: the shortest step time found; infinite if no schedule that
    fits was found. ``memory_gib``: memory of the fullest device with the schedule that has this
    step time; infinite if there is none. ``schedule``: the name of the family of that schedule, or
    ``optimized`` if the optimizer found it; empty if there is none. ``planned``: the optimizer's
    schedule; None for a family. ``tightest_gib``: the minimum, over all schedules that were tried,
    of the memory on the fullest device.
    """

    configuration: Configuration
    lower_bound: float
    step_ms: float = inf
    memory_gib: float = inf
    schedule: str = ""
    planned: Schedule | None = None
    tightest_gib: float = inf

    @property
    def rank(self) -> tuple[float, float, float]:
        """The sort key: step time rounded to nine digits, then memory, then lower bound."""
        return float(f"{self.step_ms:.9g}"), self.memory_gib, self.lower_bound

    @property
    def simulated_ops(self) -> int:
        """The number of ops that :func:`evaluate` simulates for the configuration."""
        run = self.configuration.run
        ops = 3 if self.configuration.splits else 2
        return ops * run.stages * run.microbatches * len(self.configuration.families)


@lru_cache(maxsize=8)
def rates_of(cluster: Cluster) -> Rates:
    """Return the rates of a cluster: the times of kernels and messages on it.

    Equal clusters get the same object, as it caches the times of layers.
    """
    return Rates(cluster)


def step_of(model: Model, cluster: Cluster, known: Evaluated) -> PredictedStep:
    """Return the predicted step of a configuration with the best schedule found for it so far.

    If none has been found, a family with the configuration's placement is used. ``known``: the
    configuration, and the results of its evaluation so far.
    """
    own = known.configuration
    run = replace(own.run, schedule=known.schedule) if known.schedule in own.families else own.run
    return PredictedStep(Setup(model, run), rates_of(cluster), known.planned)


def evaluate(model: Model, cluster: Cluster, known: Evaluated) -> Evaluated:
    """Return ``known`` with two new results: the fastest of the configuration's families that fits
    in memory, and a lower bound that takes messages and memory into account.

    If no family fits, the step time stays as it is in ``known``.
    """
    step = step_of(model, cluster, known)
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


def _tried(step: PredictedStep, configuration: Configuration) -> Iterator[tuple[float, float, str]]:
    """Yield a tuple for each family: step time in milliseconds, memory of the fullest device in
    GiB, and the family's name. Families that need more microbatches than the step runs are left
    out."""
    for family in configuration.families:
        own = step.scheduled(family)
        with suppress(InputError):  # if the family needs more microbatches
            yield own.time, fullest(own), family


def _bound(step: PredictedStep, known: Evaluated) -> float:
    if known.configuration.run.pp == 1:
        return known.lower_bound
    try:
        makespan = lower_bound(problem_of(step, known.configuration)).value
    except InfeasibleError:
        return inf
    return max(known.lower_bound, _with_ends(step, makespan))


def _with_ends(step: PredictedStep, makespan: float) -> float:
    """Return a lower bound on the step time, in milliseconds: ``makespan`` plus the minimum time
    for averaging gradients and the time of the optimizer step.

    ``makespan``: a lower bound on the time from the first to the last op of the step.
    """
    return makespan + min(each.exposed for each in step.averaging) + step.stepping


def improve(model: Model, cluster: Cluster, asked: tuple[Evaluated, SolveOptions]) -> Evaluated:
    """Let the optimizer search for a better schedule of a configuration.

    ``asked``: the configuration with the results so far, and the options of the search, as one
    argument for :meth:`.Workers.run`. Returns the configuration with the best of the new schedule
    and the former one, and with a lower bound that is at least the former one.
    """
    known, options = asked
    own = known.configuration
    step = step_of(model, cluster, replace(known, schedule="", planned=None))
    problem = problem_of(step, own)
    if known.step_ms < inf:
        options = replace(options, start=step_of(model, cluster, known).schedule.order)
    try:
        schedule = optimize(problem, options)
    except InfeasibleError:
        return replace(known, lower_bound=inf) if known.step_ms == inf else known
    bound = max(known.lower_bound, _with_ends(step, schedule.known_report.lower_bound or 0.0))
    order = schedule.order if own.splits else tuple(map(_joined, schedule.order))
    report = Report(Objective.MAKESPAN, OPTIMIZED)
    planned = replace(schedule, order=order, problem=problem, report=report, timing=None)
    step = replace(step, planned=planned)
    memory = fullest(step)
    known = replace(known, lower_bound=bound)
    if memory > cluster.gpu.memory_gib or step.time >= known.step_ms:
        return known
    found = replace(known, schedule=OPTIMIZED, planned=planned)
    return replace(found, step_ms=step.time, memory_gib=memory)


def _joined(order: IntArray) -> IntArray:
    """Return the order of ops with each B and the W of the same microbatch merged into a BW."""
    kinds, _, _ = fields_of(order)
    backward = np.where(kinds == OpKind.B, order - OpKind.B + OpKind.BW, order)
    joined: IntArray = backward[kinds != OpKind.W]
    return joined


def problem_of(step: PredictedStep, configuration: Configuration) -> Problem:
    """Return the problem that the optimizer solves for a configuration.

    If B and W are one op in the configuration, the problem's B takes the time of both and its W
    takes none.
    """
    rooms = rooms_of(step)
    profile = step.profile_for(configuration.splits)
    if not configuration.splits:
        profile = profile.changed(lambda each: replace(each, t_b=each.fused, t_w=0.0, m_w=0.0))
    profile = replace(profile, memory_limit=rooms)
    problem = (profile, configuration.run.microbatches, configuration.placement, rooms)
    return Problem(*problem, Objective.MAKESPAN)


def certified(step: PredictedStep) -> Schedule:
    """Return the schedule of a step, with memory limits and a lower bound.

    The limits are the bytes that each device has left for activations. The lower bound, in the
    schedule's report, is one on the makespan.
    """
    made, rooms = step.schedule, rooms_of(step)
    profile = replace(made.problem.profile, memory_limit=rooms)
    problem = replace(made.problem, profile=profile, memory_limit=rooms)
    problem = replace(problem, objective=Objective.MAKESPAN)
    report = replace(made.known_report, objective=Objective.MAKESPAN, lower_bound=None)
    return with_bound(timed(replace(made, problem=problem, report=report, timing=None)))
