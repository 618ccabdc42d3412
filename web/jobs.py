"""The jobs of solves: schedules of families and placements, or a sweep over memory limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic
from typing import Any

from pipeloom.ir.errors import InfeasibleError, UnsupportedError
from pipeloom.ir.model.placement import Passing
from pipeloom.planner.build import families
from pipeloom.planner.compare import family_row
from pipeloom.planner.inputs.fixed_cut import profiles_of
from pipeloom.planner.inputs.placement_spec import AUTO
from pipeloom.planner.optimize import optimize
from pipeloom.planner.results.result import OPTIMIZER, Result
from pipeloom.planner.solving.progress import Event, Note, Searching
from pipeloom.planner.sweep import sweep

from .asked import SolveRequest
from .solves import Solve

MANY = 8192
"""Ranks times microbatches from which on the families are built after the searches."""
INTERVAL = 0.1
"""Minimum of seconds between two events on a search in which nothing has changed."""


@dataclass
class SolveListener:
    """A listener that passes the events of a search on to a solve.

    ``name``: the search's name if its events have none.
    """

    solve: Solve
    name: str
    _last: tuple[object, ...] = ()
    _at: float = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note) and not event.routine:
            self.solve.tell("note", text=event.text)
        elif isinstance(event, Searching):
            self._searching(event)

    def _searching(self, event: Searching) -> None:
        now, name = event.now, self.name or event.name
        state = name, now.incumbent, now.bound
        if state == self._last and monotonic() < self._at + INTERVAL:
            return
        self._last, self._at = state, monotonic()
        facts = {"cost": now.incumbent, "bound": now.bound, "gap": now.gap}
        self.solve.tell("progress", name=name, seconds=self.solve.age, **facts)


def schedules(asked: SolveRequest, earlier: Solve | None) -> Callable[[Solve], None]:
    """Return the job that builds the families' schedules, and searches the best schedule for each
    placement; in the other order if building takes long.

    ``earlier``: a solve of the same problem. Its families are used again, and its schedules are the
    starts of the searches, so that no result is worse than the earlier one.
    """
    before = {row.name: row for row in earlier.rows} if earlier else {}

    def job(solve: Solve) -> None:
        parts = [_families(asked, before), _optimized(asked, before, solve)]
        many = asked.source.cluster.ranks * asked.terms.microbatches > MANY
        for row in chain.from_iterable(reversed(parts) if many else parts):
            solve.tell("row", **figures(row, solve.add(row)))
            if solve.should_stop():
                return

    return job


def title(placement: str) -> str:
    """The name of the row with the best schedule of a placement."""
    return f"{OPTIMIZER} {placement}"


def figures(row: Result, number: int) -> dict[str, Any]:
    """The values of a row in the page's table. ``number``: its index in the solve's rows."""
    known = row.row()
    keys = ("status", "bubble_rate", "lower_bound", "gap", "peak_memory", "placement", "method")
    facts = {"row": number, "name": row.name} | {key: known.get(key) for key in keys}
    if row.planned is None:
        return facts | {"built": False, "reason": row.refusal, "notes": []}
    more = {"cost": row.cost, "uncosted": row.uncosted, "fits": row.excess() is None}
    return facts | {"built": True, "notes": list(_notes(row))} | more


def _notes(row: Result) -> Iterator[str]:
    """Yield what a reader of the figures of a schedule has to know besides, in short texts."""
    yield from (note.partition(";")[0] for note in row.notes)  # without hints at options
    if abs(row.work_ratio - 1) > 1e-6:
        yield f"its ops take {row.work_ratio:.4g} times as long: bubbles are not comparable"


def _optimized(asked: SolveRequest, before: dict[str, Result], solve: Solve) -> Iterator[Result]:
    """Yield a row for each placement: the best schedule found, or the reason why there is none."""
    share = asked.time_limit / max(1, len(asked.placements))
    for number, name in enumerate(asked.placements, 1):
        solve.tell("searching", name=name, at=number, of=len(asked.placements))
        yield _searched(asked, name, _how(solve, name, share), before.get(title(name)))


def _families(asked: SolveRequest, known: dict[str, Result]) -> Iterator[Result]:
    """Yield a row for each family: its schedule, or the reason why there is none."""
    _, profile_of, _ = profiles_of(asked.source, asked.terms.microbatches)
    for name in families():
        yield known[name] if name in known else family_row(name, profile_of, asked.terms)


def _searched(asked: SolveRequest, name: str, how: Any, before: Result | None) -> Result:
    """Return the best schedule of the placement ``name``: that of ``before``, unless a better one
    is found. ``how``: the arguments by :func:`_how`."""
    known = None if before is None else before.planned
    start = None if asked.source.is_cut() or name == AUTO else known
    if start and (start.problem.placement.passing is not Passing.ACTIVATIONS or any(start.pairs)):
        start = None  # the optimizer does not start from it
    try:
        found = optimize(asked.source, placement=name, start=start, **how, **asked.options)
    except (InfeasibleError, UnsupportedError) as error:
        return Result.refused(title(name), error)
    if before is not None and known is not None and before.cost < found.cost:
        return before
    return replace(found, name=title(name), scheme=title(name))


def _how(solve: Solve, name: str, seconds: float) -> dict[str, Any]:
    """The arguments of a search that do not define its problem. ``name``: what is searched."""
    told = SolveListener(solve, name)
    return {"time_limit": max(0.05, seconds), "progress": told, "should_stop": solve.should_stop}


def frontier(asked: SolveRequest) -> Callable[[Solve], None]:
    """Return the job that finds the best schedule for each memory limit."""

    def job(solve: Solve) -> None:
        limits = {str(limit): limit for limit in asked.memory_limits}
        placement = asked.placements[0] if len(asked.placements) == 1 else AUTO
        how = _how(solve, "", asked.time_limit / max(1, len(limits)))
        how |= {key: asked.options[key] for key in ("microbatches", "objective")}
        found = sweep(asked.source, memory_limits=limits, placement=placement, **how)
        points = [figures(row, solve.add(row)) for row in found.rows]  # in the drawing's order
        solve.tell("frontier", picture=found.picture() if found.built else "", points=points)

    return job
