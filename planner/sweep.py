"""``sweep``: the memory limit against the bubble rate, and a picture of it."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_schedule, write_json, write_text
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import check_limit
from pipeloom.ir.units import counted
from pipeloom.report.frontier_svg import Frontier, FrontierPoint, frontier_svg
from pipeloom.solver.families import FAMILIES
from pipeloom.solver.placement.search import room

from .compare import evaluate_families, evaluate_optimum, family_profiles
from .evaluation.columns import BUBBLE, PEAK_MEMORY, PERIOD, STATUS, Column
from .evaluation.evaluation import Evaluation
from .evaluation.table import EvaluationTable, evaluations_table
from .inputs.documents import FilePath
from .inputs.problem_setup import ProfileLike, ProfileSource, objective_of
from .solving.progress import Listener, Note, labelled, unheard

COLUMNS = (
    "memory_limit", "status", "bubble_rate", "lower_bound_rate", "period", "makespan",
    "lower_bound", "gap", "peak_memory", "solve_seconds", "smallest_memory_limit",
    "smallest_device_memory", "file",
)  # fmt: skip


@dataclass(frozen=True)
class Swept:
    """The best schedule under one limit. ``words``: the limit as it was typed; ``file``: where the
    schedule was written, in the sweep's folder."""

    words: str
    limit: float
    row: Evaluation
    file: str | None = None

    def to_dict(self) -> dict[str, Any]:
        limit = self.limit if math.isfinite(self.limit) else None
        known = self.row.to_dict() | {"memory_limit": limit, "file": self.file}
        return {key: known.get(key) for key in COLUMNS}

    def point(self) -> FrontierPoint:
        at = self.limit if math.isfinite(self.limit) else self.row.peak_memory
        optimal = self.row.status == "optimal"
        return FrontierPoint(at, self.row.bubble_rate, self.row.lower_bound_rate, optimal)


@dataclass(frozen=True)
class Sweep(EvaluationTable):
    """The best schedule for each of ``limits``, from small ones to large ones, and the families
    without a limit. ``output``: the folder that all was written to."""

    limits: tuple[Swept, ...]
    families: tuple[Evaluation, ...]
    output: FilePath | None = None

    def to_dict(self) -> dict[str, Any]:
        """The object that ``sweep --json`` prints."""
        return super().to_dict() | {
            "output": None if self.output is None else os.fspath(self.output),
            "results": [swept.to_dict() for swept in self.limits],
            "families": [row.to_dict() for row in self.families],
        }

    def __str__(self) -> str:
        words = {id(swept.row): swept.words for swept in self.limits}
        limit = Column("memory limit", lambda row: words[id(row)])
        return evaluations_table(self.rows, [limit, BUBBLE, PERIOD, PEAK_MEMORY, STATUS])

    def csv(self) -> str:
        """The limits, one a line, under :data:`COLUMNS`."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(swept.to_dict() for swept in self.limits)
        return text.getvalue()

    def picture(self) -> str:
        """An SVG of the bubble rate over the memory limit, with bounds and families."""
        sizes = counted(self.profile.ranks, "rank"), counted(self.microbatches, "microbatch")
        title = ", ".join([self.profile.name or "sweep", *sizes])
        points = [swept.point() for swept in self.limits if swept.row.planned is not None]
        scope = self.built[-1].scope if self.built else ""
        families = [row for row in self.families if row.planned is not None]
        others = {row.name for row in families if row.scope != scope}
        marks = [(row.name, row.peak_memory, row.bubble_rate) for row in families]
        return frontier_svg(Frontier(title, self.objective.value, points, marks, scope, others))

    def write(self, folder: Path) -> None:
        """Writes results.json, results.csv and frontier.svg."""
        document = {key: value for key, value in self.to_dict().items() if key != "output"}
        write_json(document, str(folder / "results.json"))
        write_text(self.csv(), str(folder / "results.csv"))
        write_text(self.picture(), str(folder / "frontier.svg"))


def sweep(
    profile: ProfileLike | ProfileSource,
    microbatches: int | None,
    memory_limits: Mapping[str, float] | Iterable[float],
    *,
    output: FilePath | None = None,
    objective: str | Objective = Objective.PERIOD,
    partition: str | None = None,
    min_layers: int | None = None,
    max_layers: int | None = None,
    time_limit: float = 30.0,
    progress: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
    **options: Any,
) -> Sweep:
    """The best schedule for each memory limit.

    ``memory_limits``: of the activations on each rank; a mapping has what each is called, in file
    names too. ``output``: a folder, made if absent, for a schedule of each limit, written when it
    is found, for tables and a picture. Other arguments are those of :func:`pipeloom.optimize`;
    ``time_limit``: seconds for each limit. Once ``should_stop`` turns true larger limits are left
    out. Raises InputError for wrong input.
    """
    folder = None if output is None else _folder(os.fspath(output))
    source, objective = ProfileSource.of(profile, progress), objective_of(objective)
    cuts = {"partition": partition, "min_layers": min_layers, "max_layers": max_layers}
    microbatches = source.number(microbatches)
    known, profile_of, cut = family_profiles(source, microbatches, cuts)
    options |= {"objective": objective, "time_limit": time_limit, "should_stop": should_stop}
    options |= {"profile": source, "microbatches": microbatches, "cuts": cuts if cut else {}}
    found = list(_sweep(_limits(memory_limits), folder, progress or unheard, options))
    families = evaluate_families(FAMILIES, profile_of, microbatches, math.inf, objective)
    rows = tuple(swept.row for swept in found)
    swept = Sweep(known, microbatches, objective, rows, tuple(found), tuple(families), output)
    if folder is not None:
        swept.write(folder)
    return swept


def _sweep(
    limits: Mapping[str, float], folder: Path | None, tell: Listener, options: dict[str, Any]
) -> Iterator[Swept]:
    """A schedule that fits under one limit fits under the next: each is at least as good."""
    tell(Note(f"{counted(len(limits), 'limit')}, at most {_each(options)}", routine=True))
    before: Evaluation | None = None
    for number, (words, limit) in enumerate(limits.items(), 1):
        label = f"limit {number} of {len(limits)} ({words})"
        options |= {"memory_limit": limit, "progress": labelled(label, tell)}
        row, stopped = evaluate_optimum(**options)
        if row.planned is None:
            tell(Note(f"{label}: infeasible", routine=True))
        else:
            before = row = _better(row, before, limit)
        yield _written(Swept(words, limit, row), folder)
        if stopped:
            tell(Note("interrupted: larger limits are left out"))
            return


def _limits(given: Mapping[str, float] | Iterable[float]) -> dict[str, float]:
    """From small to large, each with what it is called. Raises InputError for what is no limit."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise InputError(f"memory_limits: expected several numbers, got {given!r}")
    limits = list(given.values()) if isinstance(given, Mapping) else list(given)
    if not limits:
        raise InputError("memory_limits: expected at least one, got none")
    for limit in limits:
        check_limit(limit)
    named = given if isinstance(given, Mapping) else {_words(limit): limit for limit in limits}
    return dict(sorted(named.items(), key=lambda item: item[1]))


def _words(limit: float) -> str:
    return "none" if math.isinf(limit) else f"{limit:.17g}"


def _each(options: Mapping[str, Any]) -> str:
    work = options.get("work_limit")
    if work is None:
        return f"{options['time_limit']:g} s each (--time-limit)"
    return f"{work:g} million simulated ops each (--work-limit)"


def _folder(path: str) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise InputError(f"output: expected a folder or a place for one, got {path!r}") from None
    return folder


def _written(swept: Swept, folder: Path | None) -> Swept:
    """Writes its schedule to the folder, if there are both."""
    if folder is None or swept.row.planned is None:
        return swept
    file = f"schedule-{swept.words}.json"
    write_json(dump_schedule(swept.row.planned), str(folder / file))
    return replace(swept, file=file)


def _better(row: Evaluation, known: Evaluation | None, limit: float) -> Evaluation:
    """``row``, or the one known of a smaller limit where that costs less, under this limit."""
    report = row.schedule.report
    if known is None or row.cost <= known.cost or report is None:
        return row
    assert known.schedule.report is not None
    report = replace(report, family=known.schedule.report.family)
    problem = _under(limit, known.schedule.problem, row.schedule.problem)
    return replace(row, planned=replace(known.schedule, problem=problem, report=report))


def _under(limit: float, problem: Problem, solved: Problem) -> Problem:
    """``problem`` of another limit, and maybe cut, under this limit as ``solved`` has it."""
    if problem.profile == solved.profile:
        return solved
    given = problem.profile.limit_from(limit)
    return replace(problem, memory_limit=room(problem.profile, problem.placement, given))
