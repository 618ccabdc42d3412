"""``optimize --robust``: the schedule whose step is shortest in the mean, or nearly always.

The plain search finds a schedule for the profile's times. From its order, and those of families,
warm starts and constructors, orders are annealed by their cost on a fixed set of samples; the best
of each start and the plain one are then judged on samples that the search did not see, and what is
told of the chosen one is from a third set. A schedule takes the plain one's place only where it is
better by twice the standard error of the difference on the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration
from pipeloom.report.summaries import percent
from pipeloom.solver.bounds import work_bound
from pipeloom.solver.construct.warm_start import warm_starts
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.core.options import Order, SolveOptions
from pipeloom.solver.core.relaxations import offloadable, recomputable
from pipeloom.solver.core.schedule_cost import (
    iteration_time,
    objective_cost,
    status_under,
    within_memory,
)
from pipeloom.solver.families.applicable import families_of
from pipeloom.solver.search.robust_annealing import RobustAnnealer
from pipeloom.solver.search.robust_construction import constructed

from ..explain.answer import Answer
from .late_steps import LateStep, late_step, sampled
from .variation import Variation, drawn_samples

MEASURES = {"mean": 0.0, "p95": 0.95}
"""The quantile that each measure is, 0 for the mean."""
SEARCHED = 64
"""Samples that orders are annealed on; for a quantile twice as many."""
STARTS = 2
"""Orders of families and warm starts that are annealed, too."""
CONSTRUCTED = 0.1
"""Share of time or work for orders that are constructed."""
JUDGED, TOLD = 1, 2
"""What seeds are followed by: the samples that schedules are judged on, and those told of."""
SURE = 2.0
"""Standard errors by which a schedule has to be better."""


@dataclass(frozen=True, slots=True)
class RobustFacts:
    """Costs of the schedule chosen, ``robust``, and of the plain search's, ``plain``, on samples
    that neither was chosen on; ``lower_bound``: of every schedule's mean; None of a quantile."""

    measure: str
    robust: LateStep
    plain: LateStep
    lower_bound: float | None

    @property
    def gain(self) -> float:
        """By what share the measure is below the plain search's."""
        ours, plain = (getattr(one, self.measure) for one in (self.robust, self.plain))
        return 1.0 - ours / plain if plain > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        keys = ("planned", "mean", "median", "p95")
        rows = {name: getattr(self, name) for name in ("robust", "plain")}
        return {
            "measure": self.measure,
            "gain": self.gain,
            "lower_bound": self.lower_bound,
            "samples": self.robust.samples,
            **{name: {key: getattr(row, key) for key in keys} for name, row in rows.items()},
        }

    def __str__(self) -> str:
        ours, plain = self.robust, self.plain
        head = f"robust {ours.objective} where {ours.variation}, {ours.samples} unseen samples:"
        lines = [
            head,
            *(
                f"  {name:<8}mean {duration(row.mean)}, 95th percentile {duration(row.p95)}, "
                f"planned {duration(row.planned)}"
                for name, row in (("robust", ours), ("plain", plain))
            ),
            f"  {'gain':<8}{percent(self.gain)} of the {self.measure}",
        ]
        return "\n".join([*lines, f"  {'bound':<8}{self._bound(ours.objective)}"])

    def _bound(self, objective: str) -> str:
        if self.lower_bound is None:
            return "none is known of a quantile"
        least = f"no mean is below {duration(self.lower_bound)}"
        if objective == Objective.MAKESPAN.value:
            return f"{least}, the bound on plans: a makespan is convex in op times (Jensen)"
        return f"{least}, what the busiest rank computes"


def robust_answer(
    answer: Answer, measure: str, variation: Variation, options: SolveOptions
) -> Answer:
    """The answer with the order whose ``measure`` is least, within ``options``."""
    plain = answer.schedule
    problem, share = plain.problem, MEASURES[measure]
    rng = np.random.default_rng(options.seed)
    number = SEARCHED * (2 if share else 1)
    ratios = variation.ratios(problem)
    annealer = RobustAnnealer(problem, ratios.draw(problem, number, rng), share, rng)
    bound = plain.report.lower_bound or 0.0 if plain.report else 0.0
    built = constructed(problem, bound, annealer, options.share(CONSTRUCTED), rng)
    known = sorted(_starts(problem), key=annealer.cost)[:STARTS]
    starts = sorted([plain.order, *known, *built], key=annealer.cost)
    searched = options.share(1 - CONSTRUCTED)
    found = annealer.improve(starts, searched.budget, options.should_stop)
    chosen = _chosen(plain, found, variation, share, options.seed)
    late = [
        late_step(each, variation, measure, seed=_seed(options.seed, TOLD))
        for each in (chosen, plain)
    ]
    facts = RobustFacts(measure, late[0], late[1], _mean_bound(answer, share))
    return replace(
        answer,
        schedule=chosen,
        cost=iteration_time(chosen),
        facts={**answer.facts, "robust": facts.to_dict()},
        words="\n\n".join(filter(None, [answer.words, str(facts)])),
        stopped=options.should_stop(),
    )


def check_robust(problem: Problem, variation: Variation, where: str) -> None:
    """Raises InputError where the problem has what robust search does not plan."""
    if variation.measured is not None:  # whose means are not the profile's, as the bound expects
        raise InputError(f"spread: expected a number from 0 to 1, got {variation.where!r}")
    if variation.own and all(stage.spread is None for stage in problem.profile.stages):
        raise InputError(f"robust: expected spread in {where}, or --spread X beside it")
    if bool((recomputable(problem) | offloadable(problem)).any()):
        raise InputError("robust: expected --recompute none and --offload none beside it")
    if problem.profile.data_parallel is not None:
        raise InputError(f"robust: expected no data_parallel in {where}")
    if any(stage.saving > 0 for stage in problem.profile.stages):
        raise InputError(f"robust: expected no t_fb in {where}")


def _starts(problem: Problem) -> Iterator[Order]:
    """Orders that memory holds: warm starts and families."""
    linear = None if problem.profile.unlike else LinearInstance.of(problem)
    if linear is not None:
        yield from warm_starts(problem, linear)
    for family in families_of(problem):
        if family.supports(problem) is None:
            with suppress(InfeasibleError):
                built = family.build(problem)
                if not any(built.pairs) and within_memory(problem, timed(built).timing):  # type: ignore[arg-type]
                    yield built.order


def _chosen(
    plain: Schedule, orders: list[Order], variation: Variation, share: float, seed: int
) -> Schedule:
    """The best schedule on samples of its own, the plain one unless it is surely better."""
    best, least = plain, _costs(plain, variation, seed)
    for order in orders:
        schedule = _reported(plain, order)
        costs = _costs(schedule, variation, seed)
        gain, error = _difference(least, costs, share)
        if gain > SURE * error:
            best, least = schedule, costs
    return best


def _costs(schedule: Schedule, variation: Variation, seed: int) -> FloatArray:
    count = drawn_samples(3 * schedule.problem.stages * schedule.problem.microbatches)
    return sampled(schedule, variation, seed=_seed(seed, JUDGED), samples=count).costs


def _difference(before: FloatArray, after: FloatArray, share: float) -> tuple[float, float]:
    """By how much a measure falls, and the standard error of that: of a quantile by ten parts."""
    if not share:
        saved = before - after
        return float(saved.mean()), float(saved.std() / math.sqrt(len(saved)))
    parts = zip(np.array_split(before, 10), np.array_split(after, 10), strict=True)
    saved = np.array([np.quantile(a, share) - np.quantile(b, share) for a, b in parts])
    whole = np.quantile(before, share) - np.quantile(after, share)
    return float(whole), float(saved.std(ddof=1) / math.sqrt(len(saved)))


def _reported(plain: Schedule, order: Order) -> Schedule:
    """The order with the plain search's bound, which holds for every order."""
    found = timed(Schedule(plain.problem, order))
    report, cost = plain.known_report, objective_cost(found)
    report = replace(report, family="robust", status=status_under(report.lower_bound or 0.0, cost))
    return replace(found, report=report)


def _mean_bound(answer: Answer, share: float) -> float | None:
    """A bound on the mean cost of every schedule where times have the profile's as their means.

    A makespan is a maximum of sums of op times, which is convex, so that its mean is at least the
    makespan at the mean times: the plain bound holds. A period is a maximum of differences of such,
    and is not: only the work of the busiest rank bounds its mean.
    """
    if share:
        return None
    problem = answer.schedule.problem
    if problem.objective is Objective.MAKESPAN:
        return answer.lower_bound
    return work_bound(problem).value


def _seed(seed: int, use: int) -> int:
    """Seeds that give other samples than ``seed`` itself does."""
    return int(np.random.SeedSequence([seed, use]).generate_state(1)[0])
