"""Numbers and schedules as short texts, for titles, summaries and tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.ir.model.ops import KIND_MASK, OpKind
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import OPTIMIZED, Schedule, Status, gap_between, staleness
from pipeloom.ir.units import counted, duration, memory_size

from .bars import fullest, peak_memory, timed

WITHOUT_BARRIER = "time per iteration without a barrier between optimizer steps"
WITH_BARRIER = "with a barrier, as for clipping or loss scaling"


NOTHING = 5e-7
"""Fractions below this are shown as 0."""


def percent(share: float) -> str:
    """A fraction as text such as ``4.33 %``; below 0.1 %, it has two significant digits."""
    if abs(share) < NOTHING:
        return "0 %"
    return f"{share * 100:.2f} %" if abs(share) >= 1e-3 else f"{share * 100:.2g} %"


def setting(schedule: Schedule) -> str:
    """The size of the problem as text: ``zb-6.2b, 8 ranks, 24 microbatches``."""
    problem = schedule.problem
    counts = counted(problem.ranks, "rank"), counted(problem.microbatches, "microbatch")
    return ", ".join([*filter(None, [problem.profile.name]), *counts])


def called(schedule: Schedule) -> str:
    """The name of a schedule: its family, such as ``zb-h1``.

    For a schedule that was optimized, or that has no report, it is a description of the placement,
    such as ``one stage per rank``.
    """
    family = schedule.report.family if schedule.report else ""
    return family if family not in {"", OPTIMIZED} else _placed(schedule.problem)


def _placed(problem: Problem) -> str:
    placement = problem.placement
    each = f"{problem.stages // problem.ranks} stages per rank"
    words = {
        PlacementKind.LINEAR: "one stage per rank",
        PlacementKind.INTERLEAVED: f"interleaved, {each}",
        PlacementKind.V: "V" if problem.stages == 2 * problem.ranks else f"V, {each}",
        PlacementKind.WAVE: f"wave, {each}",
        PlacementKind.BIDIRECTIONAL: "two copies of the weights",
    }
    if placement.passing is Passing.WEIGHTS:
        return "weight passing"
    return words.get(placement.kind, "custom placement")


def scope(problem: Problem, *, paired: bool = False) -> str:
    """The schedules that a problem's bounds and the status ``optimal`` cover, as text.

    For example, ``one stage per rank, passing activations``. ``paired``: whether the schedule that
    the text is about has pairs (ops that run at the same time). This matters only if pairs save
    time but the optimizer forms none for this problem.
    """
    words = _placed_and_passed(problem)
    if overlap_saves(problem):
        return f"{words}, with pairs or without them"
    if all(stage.saving <= 0 for stage in problem.profile.stages):
        return words
    return f"{words}, {'with' if paired else 'without'} pairs"


def _placed_and_passed(problem: Problem) -> str:
    passing = problem.placement.passing
    if passing is Passing.WEIGHTS:
        return "passing weights, each stage on one owner"
    words = {PlacementKind.V: "stages in a V", PlacementKind.CUSTOM: "the same placement"}
    placed = words.get(problem.placement.kind, _placed(problem))
    return f"{placed}, passing activations" + " and weights" * (passing is Passing.MIXED)


def proof(schedule: Schedule) -> str | None:
    """The proven quality of the schedule as text (:func:`proven`); None without a lower bound."""
    known = gap(schedule)
    if schedule.report is None or known is None:
        return None
    return proven(schedule.report.status, known)


def proven(status: Status, gap: float) -> str:
    """``optimal`` if this is the status, else the gap as text: ``at most 4.33 % from optimal``."""
    return "optimal" if status is Status.OPTIMAL else from_optimal(gap)


def from_optimal(gap: float) -> str:
    """The gap as text: ``at most 4.33 % from optimal``, or ``optimal`` if the gap is shown as 0."""
    return "optimal" if gap < NOTHING else f"at most {percent(gap)} from optimal"


def _held(schedule: Schedule, *, of_ranks: bool = False) -> str:
    """The peak memory as text: ``7.94 of 8 (rank 2)``.

    It is that of the rank whose peak is the largest fraction of its limit. If the ranks have two
    different limits, the largest peak under the other limit is added. If the largest peak of all is
    that of yet another rank, it is added as well. ``of_ranks``: name the ranks even if all limits
    are equal.
    """
    limits, peaks = schedule.problem.memory_limit, peak_memory(schedule)
    ranks = [first := fullest(schedule)]
    if len(set(limits)) == 2:
        others = (r for r, limit in enumerate(limits) if limit != limits[first])
        ranks.append(max(others, key=lambda rank: peaks[rank]))
    if max(peaks) > max(peaks[rank] for rank in ranks):
        ranks.append(peaks.index(max(peaks)))
    named = of_ranks or len(set(limits)) > 1
    shown = []
    for rank in ranks:
        limit = f" of {memory_size(limits[rank])}" if math.isfinite(limits[rank]) else ""
        shown.append(f"{memory_size(peaks[rank])}{limit}" + f" (rank {rank})" * named)
    return ", ".join(shown)


def summary(schedule: Schedule) -> str:
    """A line with bubble rate, period, makespan, peak memory, and the proven quality if there is a
    bound."""
    schedule, objective = timed(schedule), schedule.problem.objective
    rate, known = percent(schedule.known_timing.bubble_rate(objective)), proof(schedule)
    parts = [f"bubble {rate} of the {objective.value}", figures(schedule)]
    return ", ".join([*parts, known] if known else parts)


def figures(schedule: Schedule) -> str:
    """Period, makespan, peak memory and, with replicas, the cost of averaging gradients, as text.

    The objective, period or makespan, comes first. For example, ``period 1900.5 ms, makespan 2109.9
    ms, peak memory 16 of 16``.
    """
    schedule = timed(schedule)
    timing = schedule.known_timing
    costs = [f"period {duration(timing.period)}", f"makespan {duration(timing.makespan)}"]
    if schedule.problem.objective is Objective.MAKESPAN:
        costs.reverse()
    return ", ".join(
        [*costs, f"peak memory {_held(schedule)}", *filter(None, [averaging(schedule)])]
    )


def repeats(schedule: Schedule) -> str | None:
    """The line below a picture that tells at which interval ranks start the next iteration.

    None if iterations do not overlap, or if the times were measured in a single step.
    """
    timing, objective = timed(schedule).known_timing, schedule.problem.objective
    if objective is Objective.MAKESPAN or timing.period > timing.makespan * (1 - 1e-6):
        return None
    if not math.isclose(simulate(schedule).makespan, timing.makespan, rel_tol=1e-6):
        return None
    every = duration(timing.iteration_time(objective))
    return f"one of many iterations: a rank starts the next where its row ends, one every {every}"


def asked_by_profile(profile: Profile, objective: Objective) -> str | None:
    """A note that the objective is the makespan because the profile has a barrier.

    It is None if the objective is the period, or if the profile has no barrier.
    """
    asked = profile.barrier and objective is Objective.MAKESPAN
    return "makespan, because the profile has a barrier" if asked else None


def caption(name: str | None, schedule: Schedule, *, with_setting: bool = True) -> str:
    """A title for a schedule: ``measured, zb-6.2b, 8 ranks, 24 microbatches: V, 0.44 % bubble
    (optimal)``.

    ``name``: the user's name for the schedule, or None. ``with_setting``: include :func:`setting`.
    """
    rate = timed(schedule).known_timing.bubble_rate(schedule.problem.objective)
    known = f" ({quality})" if (quality := proof(schedule)) else ""
    title = f"{called(schedule)}, {percent(rate)} bubble{known}"
    before = ", ".join(filter(None, [name, setting(schedule) if with_setting else ""]))
    return f"{before}: {title}" if before else title


def facts(schedule: Schedule, assumed: str | None = None) -> str:
    """The bubble rate, times, memory and proven quality of a schedule, as text.

    There is one labeled line for each, below a heading; a line whose value is unknown is left out.
    ``assumed``: the text of the line "assumed", or None to omit this line.
    """
    schedule = timed(schedule)
    timing, problem, report = schedule.known_timing, schedule.problem, schedule.report
    rate = percent(timing.bubble_rate(problem.objective))
    lines = [
        ("objective", asked_by_profile(problem.profile, problem.objective)),
        ("bubble rate", f"{rate} of the {problem.objective.value}"),
        ("period", f"{duration(timing.period)} ({WITHOUT_BARRIER})"),
        ("makespan", f"{duration(timing.makespan)} ({WITH_BARRIER})"),
        ("step", _steady(schedule)),
        ("assumed", assumed),
        ("peak memory", _held(schedule, of_ranks=True)),
        ("activations", _remat(schedule)),
        ("averaging", averaging(schedule)),
    ]
    if report is not None and report.lower_bound is not None:
        because = f" ({report.bound})" if report.bound else ""
        bound = f"{duration(report.lower_bound)} on the {problem.objective.value}{because}"
        lines.append(("lower bound", bound))
        is_optimal = report.status is Status.OPTIMAL
        known = "proven" if is_optimal else f"gap {percent(gap(schedule) or 0.0)}"
        lines.append(("status", f"{report.status.value}, {known}"))
        lines.append(("bound covers", f"all schedules with {scope(problem)}"))
    if report is not None and report.method not in {None, report.family}:
        lines.append(("found by", report.method))
    if report is not None and report.solve_seconds is not None:
        lines.append(("solved in", f"{report.solve_seconds:.1f} s"))
    width = max(len(name) for name, words in lines if words) + 2
    heading = f"{setting(schedule)}: {called(schedule)}"
    return "\n".join([heading, *(f"  {name:<{width}}{words}" for name, words in lines if words)])


def averaging(schedule: Schedule) -> str | None:
    """The cost of averaging gradients over replicas as text, or None without replicas."""
    schedule = timed(schedule)
    timing, objective = schedule.known_timing, schedule.problem.objective
    if not any(timing.averages):
        return None
    busy = max(math.fsum(one.end - one.start for one in row) for row in timing.averages)
    left = timing.exposed(objective)
    late = ", the rest waits for gradients" if left > busy * (1 + 1e-9) else ""
    return (
        f"{duration(left)} of averaging left after ops (of {duration(busy)} at most on a "
        f"rank{late}), iteration {duration(timing.iteration_time(objective))}"
    )


def _steady(schedule: Schedule) -> str | None:
    """The time of a step in the steady state as text.

    It is None unless weights are passed and their sizes and the links are known.
    """
    if not schedule.transfers or uncosted(schedule):
        return None
    every = duration(step_between_ops(schedule))
    return f"{every} (consecutive steps, with messages waiting for busy links)"


def _remat(schedule: Schedule) -> str | None:
    """Text with the numbers of recomputed and offloaded activations: ``3 recomputed of 24``.

    A (stage, microbatch) counts as one activation. None if there are no such activations.
    """
    ops = np.concatenate(schedule.order)
    number = np.bincount(ops & KIND_MASK, minlength=len(OpKind)).tolist()
    kinds = (OpKind.R, "recomputed"), (OpKind.O, "offloaded")
    parts = [f"{number[kind]} {what}" for kind, what in kinds if number[kind]]
    return f"{', '.join(parts)} of {number[OpKind.F]}" if parts else None


def transfer_note(schedule: Schedule) -> str | None:
    """A note that gradients are stale, or that the weight transfers have no realistic cost.

    It is None if neither is so.
    """
    lag = max(staleness(schedule))
    if lag:
        return f"asynchronous: gradients lag by up to {lag} update{'s' * (lag > 1)}"
    return uncosted(schedule)


def uncosted(schedule: Schedule) -> str | None:
    """The reason why the weight transfers of a schedule have no realistic cost.

    None if they have a realistic cost, or if there are no transfers.
    """
    profile = schedule.problem.profile
    if not schedule.transfers:
        return None
    if profile.links is None:
        cost = "free" if profile.t_comm is None else "t_comm each"
        return f"no links in the profile: transfers counted as {cost}"
    if any(stage.weight_bytes is None for stage in profile.stages):
        return "weight_bytes unknown: transfers counted as free"
    return None


def gap(schedule: Schedule) -> float | None:
    """The gap, (cost - lower bound) / cost, or None if there is no lower bound."""
    report = schedule.report
    if report is None or report.lower_bound is None:
        return None
    cost = timed(schedule).known_timing.cost(schedule.problem.objective)
    return gap_between(cost, report.lower_bound)


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """A summary of a schedule document: the profile's name, sizes, memory limit and report.

    All are keys of one dictionary; the sizes are the numbers of ranks, stages and microbatches. The
    order of ops is not in it.
    """
    keys = ("passing", "ranks", "stages", "microbatches", "memory_limit")
    return {
        "name": document["profile"]["name"],
        **{key: document[key] for key in keys},
        **document["report"],
    }
