"""``optimize --passing auto``: activations, weights, both in turn, or sharded data: what is
fastest, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, Status
from pipeloom.ir.units import counted
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.decomposition import different_parts
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion
from pipeloom.solver.optimize import optimize

from ..evaluation.evaluation import Judged, fastest
from .candidates import Scheme, schemes

Search: TypeAlias = Callable[[Problem, str, float], Schedule]
"""The optimizer, given a problem, what it is for, and its share of the time."""

SHARES = {"activations": 4.0, "weights": 3.0}
ISLANDS_SHARE = 3.0
"""Shares of the time that the optimizer has for each scheme; that of all islands together."""
CLOSED = 1e-6


@dataclass(frozen=True)
class Row:
    """A scheme: its fastest schedule that fits, and None; or the one that needs least, and why it
    cannot be used."""

    scheme: str
    judged: Judged | None
    why_not: str | None

    @property
    def base(self) -> str:
        return self.scheme.partition(":")[0]


@dataclass(frozen=True)
class Choice:
    """``best``: what to run; None where nothing fits. ``rows``: one a scheme, the fastest first."""

    best: Judged | None
    rows: tuple[Row, ...]

    @property
    def usable(self) -> list[Judged]:
        return [row.judged for row in self.rows if row.judged and row.why_not is None]


def choose(
    profile: Profile,
    microbatches: int,
    *,
    memory_limit: float | None = None,
    objective: Objective = Objective.PERIOD,
    search: Search | None = None,
    should_stop: StoppingCriterion = NEVER,
) -> Choice:
    """The schedule with the shortest step among all schemes, within memory limit and device memory.

    Steps follow each other without a barrier, and a wire carries one message at a time
    (:mod:`pipeloom.cli.ir.replay`). Each scheme's fixed shapes are tried, then what ``search``
    finds for it (by default the optimizer, about a minute in all); once ``should_stop`` turns true,
    one shape a scheme.
    """
    look = search or searching(60.0)
    posed = schemes(profile, microbatches, memory_limit, objective)
    found = {scheme.name: _judged(scheme.name, scheme.built(), should_stop) for scheme in posed}
    refused: dict[str, str] = {}
    for scheme, share in zip(posed, _shares(posed), strict=True):
        if share and not should_stop():
            try:
                found[scheme.name] += _optimized(scheme, found[scheme.name], look, share)
            except (InfeasibleError, InputError) as error:
                refused[scheme.name] = str(error)
    rows = [_row(name, candidates, refused.get(name)) for name, candidates in found.items()]
    if profile.num_stages < profile.ranks:
        few = f"{counted(profile.num_stages, 'stage')} cannot fill {counted(profile.ranks, 'rank')}"
        rows.append(Row("activations", None, few))
    rows.sort(key=_order)
    best = rows[0].judged if rows[0].why_not is None else None
    return Choice(best and replace(best, schedule=certified(best.schedule)), tuple(rows))


def searching(time_limit: float, seed: int = 0) -> Search:
    """The optimizer for ``time_limit`` seconds in all."""

    def search(problem: Problem, _: str, share: float) -> Schedule:
        return optimize(problem, time_limit=time_limit * share, seed=seed, by_step=True)

    return search


def certified(schedule: Schedule) -> Schedule:
    """``schedule`` with a bound for all of its placement, where it has none yet."""
    report, timing, problem = schedule.report, schedule.timing, schedule.problem
    assert report is not None
    assert timing is not None
    if report.lower_bound is not None:
        return schedule
    bound, cost = lower_bound(problem), timing.cost(problem.objective)
    assert bound.value <= cost * (1 + CLOSED), f"{bound} above {cost}"
    closed = cost - bound.value <= CLOSED * cost
    known = replace(
        report,
        lower_bound=min(bound.value, cost),
        bound_name=bound.name,
        status=Status.OPTIMAL if closed else Status.FEASIBLE,
    )
    return replace(schedule, report=known)


def _judged(
    name: str, schedules: Iterable[Schedule], should_stop: StoppingCriterion = NEVER
) -> list[Judged]:
    """At least the first of ``schedules``."""
    found: list[Judged] = []
    for schedule in schedules:
        found.append(Judged.of(name, schedule))
        if should_stop():
            break
    return found


def _shares(posed: Sequence[Scheme]) -> list[float]:
    """Of the time, one a scheme, 1 in all; none where there is nothing to optimize."""
    islands = sum(":" in scheme.name for scheme in posed)
    wanted = [
        ISLANDS_SHARE / islands if ":" in scheme.name else SHARES.get(scheme.name, 0.0)
        for scheme in posed
    ]
    return [share / sum(wanted) for share in wanted]


def _optimized(
    scheme: Scheme, built: Sequence[Judged], search: Search, share: float
) -> list[Judged]:
    """What the optimizer finds where activations have the room that the leanest built one
    leaves."""
    room = scheme.problem.memory_limit
    if built and scheme.problem.profile.device_memory is not None:
        room = max((one.room() for one in built), key=min)
    islands = ":" in scheme.name
    number = max(1, len(different_parts(scheme.problem))) if islands else 1
    try:
        return _judged(
            scheme.name,
            scheme.optimized(lambda problem: search(problem, scheme.name, share / number), room),
        )
    except InfeasibleError as error:
        if error.device or room == scheme.problem.memory_limit:
            raise
        return []  # the limit was what is left of the devices: the candidates say what they lack


def _row(name: str, candidates: Sequence[Judged], refusal: str | None) -> Row:
    best = fastest(candidates)
    if best is not None:
        return Row(name, best, None)
    nearest = min(candidates, key=lambda one: (one.fullness, one.step), default=None)
    reason = refusal or (nearest and nearest.too_much()) or "no schedule"
    return Row(name, nearest, reason)


def _order(row: Row) -> tuple[bool, float, float]:
    """Those that fit by their step; of the same step, rounding aside, the one that holds less
    first."""
    if row.judged is None:
        return row.why_not is not None, float("inf"), 0.0
    return row.why_not is not None, float(f"{row.judged.step:.9g}"), row.judged.held
