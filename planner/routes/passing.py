"""``optimize --passing auto``: the scheme with the shortest step, of passing activations, passing
weights, and FSDP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.schedule_cost import status_under
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion
from pipeloom.solver.core.tolerances import CLOSED

from ..inputs.problem_setup import Terms
from ..results.candidates import Candidate
from ..results.result import OPTIMIZER, NothingFits, Result
from ..solving.search import Search
from .placements import assumed_cut, best_of_placements
from .reasons import schemes_table, sentences
from .schemes import Scheme, scheduled_as_one, schemes

PLACING = 0.75
"""The part of the activations' share of time that is spent on choosing the placement. The rest is
spent on the placement of :func:`.in_a_row`, unless that was chosen."""


def best_of_schemes(
    profile: Profile, terms: Terms, search: Search, *, placed: bool, copies: int | None
) -> Result:
    """Return the best schedule of the scheme with the shortest step, and in words why this scheme
    was chosen.

    ``placed``: whether the placement of stages is chosen as well, as ``--passing activations``
    does; otherwise it is that of :func:`.in_a_row`. ``copies``: the maximum number of copies of the
    weights in such placements; None means 2 if it can be checked that two fit, else 1. Raises
    NothingFits, and InputError if the profile lacks links or sizes of messages.
    """
    if (lacking := missing_sizes(profile)) and profile.ranks > 1:
        raise InputError(
            f"{terms.where}: {lacking[0]}: missing; expected it with --passing auto, which "
            "compares the times of messages"
        )
    rows = compare_schemes(profile, terms, search, placed=placed, copies=copies)
    best = rows[0] if rows[0].why_not is None else None
    reasons, candidates = sentences(rows, best), tuple(_candidate(row, best) for row in rows)
    words = "\n".join([schemes_table(rows, best), "", *reasons])
    schemes = [row.row(on_cluster=True) | {"why_not": row.why_not} for row in rows]
    facts = {"choice": {"schemes": schemes, "reasons": reasons}}
    if best is None:
        raise NothingFits("no scheme fits", words, candidates, facts=facts)
    return replace(
        best,
        name=OPTIMIZER,
        candidates=candidates,
        assumed=assumed_cut(profile, best.schedule),
        facts=facts,
        words=words,
        step=best.step_time,
        stopped=search.stopped,
    )


def missing_sizes(profile: Profile) -> list[str]:
    """Return the keys that the times of messages depend on and that ``profile`` lacks."""
    sizes = ("activation_bytes", "weight_bytes")
    lacking = [key for key in sizes if any(getattr(s, key) is None for s in profile.stages)]
    return (["links"] if profile.links is None else []) + lacking


def _candidate(row: Result, best: Result | None) -> Candidate:
    is_best = best is not None and row.scheme == best.scheme
    step = None if row.planned is None else row.step_time
    return Candidate(row.scheme, step, None, None if is_best else row.why_not or "takes longer")


def compare_schemes(
    profile: Profile,
    terms: Terms,
    search: Search,
    *,
    placed: bool = False,
    copies: int | None = None,
) -> list[Result]:
    """Return one result per scheme: the schedule with the shortest step among those that fit within
    the memory limit and device memory.

    The results are sorted by step time. Schemes for which no schedule fits come last, each with the
    reason. For each scheme, published and constructed schedules are tried, then the optimizer's; if
    ``placed``, the optimizer also chooses the placement of stages, with at most ``copies`` copies
    of the weights. If the search has been stopped, only one constructed schedule per scheme is
    tried.
    """
    posed, rows = schemes(profile, terms), list[Result]()
    whole, stop = sum(scheme.share for scheme in posed), search.options.should_stop
    built = [_evaluated(each.name, each.built(each.problem), stop) for each in posed]
    for scheme, found in zip(posed, built, strict=True):
        share, refusal = scheme.share / whole, None
        if share and not search.stopped:
            placing = placed and not _by_step(scheme.problem)
            place = partial(_placed, terms, copies) if placing else None
            try:
                found.extend(_searched(scheme, found, search.share(share), place))
            except (InfeasibleError, InputError) as error:
                refusal = str(error)
        rows.append(_row(scheme.name, found, refusal))
    if profile.num_stages < profile.ranks:
        few = f"{counted(profile.num_stages, 'stage')} cannot fill {counted(profile.ranks, 'rank')}"
        rows.append(Result("activations", why_not=few))
    rows.sort(key=_order)
    if (best := rows[0]).why_not is None:
        rows[0] = Result(best.name, certified(best.schedule), scheme=best.scheme)
    return rows


def certified(schedule: Schedule) -> Schedule:
    """Return ``schedule`` with a lower bound in its report.

    If the report has none yet, a bound for all schedules with the same placement is added.
    """
    report, timing, problem = schedule.known_report, schedule.known_timing, schedule.problem
    if report.lower_bound is not None:
        return schedule
    bound, cost = lower_bound(problem), timing.cost(problem.objective)
    assert bound.value <= cost * (1 + CLOSED), f"{bound} above {cost}"
    value, status = min(bound.value, cost), status_under(bound.value, cost)
    known = replace(report, lower_bound=value, bound=bound.name, status=status)
    return replace(schedule, report=known)


def _evaluated(
    scheme: str, schedules: Iterable[Schedule], should_stop: StoppingCriterion = NEVER
) -> list[Result]:
    """Return ``schedules`` as results of the scheme ``scheme``.

    They are generated until ``should_stop`` returns true; at least one is generated.
    """
    found: list[Result] = []
    for schedule in schedules:
        name = schedule.report.family if schedule.report else scheme
        found.append(Result(name, schedule, scheme=scheme))
        if should_stop():
            break
    return found


def _placed(terms: Terms, copies: int | None, search: Search, problem: Problem) -> Schedule:
    """Return the best schedule of the problem's profile over all placements of its stages."""
    given = replace(problem.profile, memory_limit=problem.memory_limit)
    own = replace(terms, memory_limit=None)
    return best_of_placements(given, own, search.share(PLACING), copies).schedule


def _searched(
    scheme: Scheme,
    built: Sequence[Result],
    search: Search,
    place: Callable[[Search, Problem], Schedule] | None,
) -> list[Result]:
    """Return the optimizer's schedules for a scheme.

    ``built``: the scheme's constructed schedules. If the profile gives device memory, each rank's
    activations are limited to the memory that one of these schedules leaves for them: the one that
    leaves the most on its fullest rank. ``place``: the search over placements; None if the
    placement is not to be chosen.
    """
    problem = scheme.problem
    room, found = problem.memory_limit, list[Result]()
    if built and problem.profile.device_memory is not None:
        room = max((one.room() for one in built), key=min)
    if place is not None and problem.stages % problem.ranks == 0:
        with suppress(InfeasibleError):  # reported by the search below
            schedule = place(search, replace(problem, memory_limit=room))
            found = _evaluated(scheme.name, [schedule])
            if schedule.problem.placement == problem.placement:
                return found
        search = search.share(1 - PLACING)

    by_step = _by_step(problem)  # the optimizer then divides device memory itself
    own = problem if by_step else replace(problem, memory_limit=room)
    solve = partial(search.run, name=scheme.name, by_step=by_step)
    try:
        schedule = solve(own) if by_step else scheduled_as_one(own, solve)
    except InfeasibleError as error:
        if error.device or room == problem.memory_limit:
            raise
        return found  # not enough device memory, which the candidates in ``built`` report
    return found + _evaluated(scheme.name, [schedule])


def _by_step(problem: Problem) -> bool:
    """Return whether schedules are compared by step time, because weights are passed."""
    return problem.placement.passing is Passing.WEIGHTS


def _row(scheme: str, candidates: Sequence[Result], refusal: str | None) -> Result:
    """Return the candidate with the shortest step of those that fit.

    If none fits, return the one that exceeds the memory by the least, with the reason why it does
    not fit. ``refusal``: the reason to give if there is no candidate at all.
    """
    steps = [(_rounded(one), one) for one in candidates if one.excess() is None]
    if steps:
        least = min(step for step, _ in steps)
        level = [one for step, one in steps if step == least]
        # device memory, which takes time to compute, decides only ties
        return min(level, key=lambda one: one.device_memory) if len(level) > 1 else level[0]
    nearest = min(candidates, key=lambda one: (one.fullness, one.step_time), default=None)
    if nearest is None:
        return Result(scheme, why_not=refusal or "no schedule")
    return replace(nearest, why_not=nearest.excess() or refusal or "no schedule")


def _order(row: Result) -> tuple[bool, float, float]:
    """Return a sort key of results: those that fit come first, sorted by step time, then by device
    memory."""
    if row.planned is None:
        return row.why_not is not None, float("inf"), 0.0
    return row.why_not is not None, _rounded(row), row.device_memory


def _rounded(row: Result) -> float:
    """Return the step time rounded to 9 digits, so that rounding errors decide no comparison."""
    return float(f"{row.step_time:.9g}")
