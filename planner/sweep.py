"""``sweep``: the bubble rate as a function of the memory limit, and a picture of it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import dump_schedule, write_json, write_text
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Status
from pipeloom.ir.units import counted
from pipeloom.report.svg.frontier import Frontier, FrontierPoint, frontier_svg
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.schedule_cost import cost_and_memory, status_under
from pipeloom.solver.core.stopping import NEVER
from pipeloom.solver.core.tolerances import CLOSED
from pipeloom.solver.placement.search import room

from .compare import families
from .folders import made
from .inputs.documents import FilePath
from .inputs.fixed_cut import profiles_of
from .inputs.problem_setup import ProfileSource, Terms
from .inputs.words import MemorySize, memory_limit_of
from .optimize import Question
from .requests.fields import takes
from .requests.search import OptimizeRequest, SearchRequest, SweepRequest
from .results import table as of
from .results.result import OPTIMIZER, Result
from .results.table import Column, ResultTable, grouped, results_table
from .solving.progress import Listener, Note, labelled, unheard
from .solving.workers import Workers, in_order, stop_asked

COLUMNS = (
    "memory_limit", "placement", "status", "bubble_rate", "lower_bound_rate", "period", "makespan",
    "lower_bound", "least_bound", "gap", "peak_memory", "assumed", "solve_seconds",
    "smallest_memory_limit", "smallest_device_memory", "file",
)  # fmt: skip


RESULTS, PICTURE = "results.json", "frontier.svg"
Rate: TypeAlias = Callable[[float], float]
"""A function that converts a cost in milliseconds to the bubble rate that the picture shows."""


@dataclass(frozen=True)
class Sweep(ResultTable):
    """The best schedule for each memory limit. ``rows``: one per limit, in ascending order, each
    named by the limit as the user gave it.

    ``limits``: the limits by these names. ``families``: the schedules of the families, without a
    memory limit. ``output``: the folder with the written files, or None.
    """

    limits: Mapping[str, float]
    families: tuple[Result, ...]
    output: FilePath | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``sweep --json`` prints."""
        return super().to_dict() | {
            "output": None if self.output is None else os.fspath(self.output),
            "results": list(map(self._result, self.rows)),
            "families": [row.row() for row in self.families],
        }

    def _result(self, row: Result) -> dict[str, Any]:
        limit, there = self.limits[row.name], self.output is not None and row.planned
        known = row.row() | {"file": _file_of(row) if there else None}
        known["memory_limit"] = limit if math.isfinite(limit) else None
        return {key: known.get(key) for key in COLUMNS}

    def __str__(self) -> str:
        cost = of.PERIOD if self.objective is Objective.PERIOD else of.MAKESPAN
        limit = Column("memory limit", lambda row: row.name)
        columns = [limit, of.PLACEMENT, of.BUBBLE, cost, of.PEAK_MEMORY, of.STATUS]
        assumed = grouped((row.assumed, row.name) for row in self.rows if row.assumed)
        lines = [f"assumed at {', '.join(names)}: {line}" for line, names in assumed.items()]
        return "\n".join([results_table(self.rows, columns), *self.notes, *lines])

    def picture(self) -> str:
        """Return an SVG of the bubble rate over the memory limit, with lower bounds and families.

        All rates are relative to the same work, so that a lower rate means a shorter iteration:
        recomputation, and averaging of gradients that does not overlap with ops, count as idle
        time.
        """
        sizes = counted(self.profile.ranks, "rank"), counted(self.microbatches, "microbatch")
        tried = {one.name for row in self.built for one in row.candidates}
        families = [row for row in self.families if row.planned and row.uncosted is None]
        placed = {row.name: row.schedule.problem.placement.name for row in families}
        rate, idle = _rates([*self.built, *families])
        return frontier_svg(
            Frontier(
                ", ".join([self.profile.name or "sweep", *sizes]),
                self.objective.value + (f"; {idle} counts as idle" if idle else ""),
                [self._point(row, rate) for row in self.built],
                [(row.name, row.peak_memory, rate(row.cost)) for row in families],
                self.built[-1].scope if len(tried) == 1 else "any of these placements",
                {name for name, placement in placed.items() if placement not in tried},
            )
        )

    def _point(self, row: Result, rate: Rate) -> FrontierPoint:
        """Return the point of a limit in the picture: the bubble rate of its best schedule, and
        that of the lower bound over all placements searched."""
        least, proven = row.least_bound, row.least_status is Status.OPTIMAL
        bound = None if least is None else rate(least)
        return FrontierPoint(self.limits[row.name], rate(row.cost), bound, proven)

    def write(self, folder: Path) -> None:
        """Write the table (``results.json``) and the picture (``frontier.svg``) into ``folder``."""
        document = {key: value for key, value in self.to_dict().items() if key != "output"}
        write_json(document, str(folder / RESULTS))
        write_text(self.picture(), str(folder / PICTURE))


def _file_of(row: Result) -> str:
    """Return the name of the file in the output folder that has the row's schedule."""
    return f"schedule-{row.name}.json"


def _rates(rows: Sequence[Result]) -> tuple[Rate, str]:
    """Return a function that converts a cost to a bubble rate, and the names of the extra ops in
    ``rows`` whose time counts as idle: "recomputation", "averaging", both or none.

    The bubble rate is the share of the cost that is not spent on running each F, B and W once. If a
    cost, or a lower bound on one, is less than this work per rank, because pairs of F and BW take
    less time together, the smallest such cost takes the place of the work per rank.
    """
    costs = [cost for row in rows for cost in (row.cost, row.least_bound) if cost]
    ranks = rows[0].profile.ranks if rows else 1
    work = min([*(row.plain_work for row in rows), *(ranks * cost for cost in costs)], default=0.0)
    recomputed = any(row.work_ratio > 1 + CLOSED for row in rows)
    parts = {"recomputation": recomputed, "averaging": any(row.averaging for row in rows)}

    def rate(cost: float) -> float:
        return 1 - work / (ranks * cost) if cost > 0 else 0.0

    return rate, " and ".join(part for part, there in parts.items() if there)


@takes(SweepRequest)
def sweep(request: SweepRequest) -> Sweep:
    """Find the best schedule for each memory limit.

    The arguments are the fields of :class:`.SweepRequest`. ``memory_limits``: numbers, or a mapping
    from names, which are also used in file names, to numbers. ``output``: a folder, into which each
    schedule is written as soon as it is found, and at the end tables and a picture. A script that
    sets ``workers`` above 1 (the default) must guard its calls with ``if __name__ == "__main__"``.
    When ``should_stop`` returns true, the remaining limits are left out.

    Raises InputError for invalid input, and LostWorkersError if worker processes are lost
    repeatedly.
    """
    source = ProfileSource.of(request.profile, request.progress)
    limits = _limits(request.memory_limits, source)
    number = 1 if request.workers is None else request.workers
    away = Workers(number, request.scheduler, len(limits))
    folder = None if request.output is None else made(request.output)
    cache = request.cache or (folder and str(folder / "cache"))
    terms = Terms.of(request, source)
    known, profile_of, _ = profiles_of(source, terms.microbatches, **request.cuts)
    told, stop = request.progress or unheard, request.should_stop or NEVER
    labels = [f"limit {n} of {len(limits)} ({words})" for n, words in enumerate(limits, 1)]
    asked = request.arguments(SearchRequest) | {"profile": source, "cache": cache}
    questions = [
        Question.of(
            OptimizeRequest(**asked | {"memory_limit": limit, "progress": labelled(label, told)})
        )
        for limit, label in zip(limits.values(), labels, strict=True)
    ]
    if folder is not None:  # if this sweep fails, no results of an earlier one remain
        for name in (RESULTS, PICTURE):
            (folder / name).unlink(missing_ok=True)
    with away:
        solved = _solved(questions, told, away)
        rows = tuple(_no_worse(solved, limits, labels, told, folder))
    if stop() and len(rows) < len(limits):
        told(Note(f"interrupted: {counted(len(limits) - len(rows), 'limit')} left out"))
    free = tuple(families(profile_of, replace(terms, memory_limit=math.inf)))
    figures = known, terms.microbatches, terms.objective, rows
    swept = Sweep(*figures, limits, free, request.output)
    if folder is not None:
        swept.write(folder)
    return swept


Solved: TypeAlias = Iterator[tuple[int, Result]]
"""For each limit, its index and its result, in ascending order of limits."""


def _solved(questions: Sequence[Question], tell: Listener, workers: Workers) -> Solved:
    """Yield the index and the result of each question, in the order of ``questions``. Results are
    taken from the cache or found in this process or in worker processes; each is cached as soon as
    it is found."""
    known = [question.known() for question in questions]
    missing = [number for number, answer in enumerate(known) if answer is None]
    asked = [questions[number].request for number in missing]
    if workers.is_parallel(len(missing)):  # worker processes have neither cache nor listener
        asked = [replace(one, cache=None, progress=None, should_stop=stop_asked) for one in asked]

    def results() -> Solved:
        for number, cached in enumerate(known):
            if cached is not None:
                questions[number].tell_doubts(cached)
                yield number, cached
        stop = questions[0].search.options.should_stop
        for at, answer in workers.run(_solve, asked, tell=tell, should_stop=stop):
            question = questions[missing[at]]
            if answer.planned is not None:
                question.tell_doubts(answer)
                question.keep(answer)
            yield missing[at], answer

    return in_order(results())


def _solve(request: OptimizeRequest) -> Result:
    """Return the result for one limit; if nothing fits, a result with the reason instead of a
    schedule. May run in a worker process."""
    try:
        return Question.of(request).solve()
    except InfeasibleError as error:
        return Result.refused(OPTIMIZER, error)


def _no_worse(
    solved: Solved,
    limits: Mapping[str, float],
    labels: Sequence[str],
    tell: Listener,
    folder: Path | None,
) -> Iterator[Result]:
    """Yield the best schedule for each limit, in ascending order of limits, and write it into
    ``folder`` unless that is None.

    A schedule that fits within one limit fits within the next one. If the schedule of a smaller
    limit is better than what was found for a limit, it is hence used for that limit.
    """
    before: Result | None = None
    typed = list(limits.items())
    for number, answer in solved:
        name, limit = typed[number]
        row = replace(answer, name=name, scheme=name)
        if row.planned is None:
            tell(Note(f"{labels[number]}: infeasible", routine=True))
        else:
            row = before = _better(row, before, limit)
            if folder is not None:
                write_json(dump_schedule(row.schedule), str(folder / _file_of(row)))
        yield row


def _limits(
    given: Mapping[str, float | str] | Iterable[float | str], source: ProfileSource
) -> dict[str, float]:
    """Return the limits by name, in ascending order. Raises InputError for values that are not
    limits."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise InputError(f"memory_limits: expected several numbers, got {given!r}")
    limits = list(given.values()) if isinstance(given, Mapping) else list(given)
    if not limits or None in limits:
        what = "numbers, got None" if limits else "at least one, got none"
        raise InputError(f"memory_limits: expected {what}")
    sizes = [memory_limit_of(limit, source, "memory_limits") or 0.0 for limit in limits]
    names = list(given) if isinstance(given, Mapping) else list(map(_words, sizes))
    return dict(sorted(zip(names, sizes, strict=True), key=lambda item: item[1]))


def _words(limit: float) -> str:
    if isinstance(limit, MemorySize):
        return limit.words
    return "none" if math.isinf(limit) else f"{limit:.17g}"


def _better(row: Result, known: Result | None, limit: float) -> Result:
    """Return the cheaper one of ``row``, the result for ``limit``, and ``known``, the best result
    for a smaller limit. If both cost the same, the one with less memory is returned.

    ``known`` is returned as a schedule within ``limit``, with a lower bound for ``limit``.
    """
    if known is None or cost_and_memory(row.schedule) <= cost_and_memory(known.schedule):
        return row
    found, problem = known.schedule.known_report, known.schedule.problem
    under = _under(limit, problem, row.schedule.problem)
    value, name = row.lower_bound, row.bound
    if problem.placement != row.schedule.problem.placement:
        bound = lower_bound(under)
        value, name = bound.value, bound.name
    status = status_under(value or 0.0, known.objective_cost)
    report = replace(row.schedule.known_report, family=found.family, method=found.method)
    report = replace(report, lower_bound=value, bound=name, status=status)
    taken = replace(known.schedule, problem=under, report=report)
    return replace(row, planned=taken, assumed=known.assumed, lower_bound=value, bound=name)


def _under(limit: float, problem: Problem, solved: Problem) -> Problem:
    """Return ``problem`` with the memory limit ``limit``.

    ``solved``: the problem that was solved for this limit. If its profile and placement are those
    of ``problem``, it is returned itself.
    """
    if (problem.profile, problem.placement) == (solved.profile, solved.placement):
        return solved
    given = problem.profile.limit_from(limit)
    return replace(problem, memory_limit=room(problem.profile, problem.placement, given))
