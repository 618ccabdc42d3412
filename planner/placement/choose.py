"""``optimize --placement auto``: the searches of all placements, and what is said of them in the
end."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pipeloom.cli.arguments import Default
from pipeloom.cli.inputs import recomputes_all
from pipeloom.cli.progress import Interrupt, ProgressLine
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.report.text_table import table
from pipeloom.solver.core.tolerances import CLOSED
from pipeloom.solver.optimize import Solving
from pipeloom.solver.placement.search import Chosen, Tried
from pipeloom.solver.placement.successive_halving import Known, Search, cost_of

from ..cache import Question, ScheduleCache


class Searches:
    """Makes the search of each placement, or takes its answer from the cache.

    With a limit on work that answer is the one of the placement by itself. Within seconds it is
    not: placements share them, or the best has more of them; so it is kept by another name.
    """

    def __init__(
        self, args: argparse.Namespace, cache: ScheduleCache | None, interrupt: Interrupt
    ) -> None:
        self._args, self._cache, self._interrupt = args, cache, interrupt
        self._made: list[_Searching] = []

    def __call__(self, problem: Problem, name: str) -> Search:
        known = self._cache and self._cache.find(self._question(problem))
        if known:
            return Known(known)
        self._made.append(_Searching(self._args, problem, name, self._interrupt))
        return self._made[-1]

    def keep(self) -> None:
        """Puts what was found into the cache, once all is done."""
        if self._cache is None or self._interrupt.pressed:
            return
        for each in self._made:
            # where each goes to its own end, one that was left before it is no answer
            left = not (each.ran or each.done) and "seconds" not in time(self._args)
            if each.found is not None and not left:
                self._cache.keep(self._question(each.problem), each.found)

    def _question(self, problem: Problem) -> Question:
        args = self._args
        solver = args.solver
        if args.work_limit is None:
            solver += (
                " for each placement" if isinstance(args.time_limit, Default) else " in a race"
            )
        return Question(problem, solver, args.seed, args.time_limit, args.work_limit)


class _Searching:
    """The optimizer at one placement, its progress under the placement's name."""

    def __init__(
        self, args: argparse.Namespace, problem: Problem, name: str, interrupt: Interrupt
    ) -> None:
        self.problem, self.ran = problem, False
        self.found: Schedule | None = None
        self._interrupt = interrupt
        self._progress = ProgressLine(quiet=args.quiet, label=f"{name}: ")
        self._solving = Solving.of(
            problem,
            solver=args.solver,
            work_limit=args.work_limit,
            seed=args.seed,
            progress=self._progress,
            should_stop=interrupt,
            recompute_all=recomputes_all(args),
        )

    @property
    def done(self) -> bool:
        return self._solving.done

    def begin(self, seconds: float) -> Schedule:
        return self._take(self._solving.begin(seconds))

    def run(self, seconds: float) -> Schedule:
        self.ran = True
        return self._take(self._solving.run(seconds))

    def explore(self, seconds: float) -> Schedule:
        self.found = self._solving.explore(seconds)
        return self.found

    def look(self) -> None:
        self._solving.look()

    def _take(self, schedule: Schedule) -> Schedule:
        self.found = schedule
        if self.done:
            self._progress.end(schedule, self._interrupt.pressed, "work is done")
        self._progress.close()
        return schedule


def time(args: argparse.Namespace) -> dict[str, float]:
    """What ``args`` leave the placements: a time in all that was typed, else a time each, or
    work."""
    if args.work_limit is not None:
        return {}
    return {"each" if isinstance(args.time_limit, Default) else "seconds": args.time_limit}


def announce(args: argparse.Namespace, placements: int) -> None:
    """How long it may take, where nobody said how long it shall."""
    limits = time(args)
    if args.quiet or not placements or "each" not in limits:
        return
    most = (placements + 1) * limits["each"]
    print(
        f"pipeloom: {placements} placements fit: {limits['each']:g} s for each that may win and "
        "for the best again, "
        f"{most:g} s at most (--time-limit S: S seconds in all)",
        file=sys.stderr,
    )


def as_json(chosen: Chosen) -> dict[str, Any]:
    """The placements, the best first, and the bound for all of them together."""
    cost = None if chosen.best is None else cost_of(chosen.best)
    gap = None if cost is None or chosen.bound is None else max(0.0, (cost - chosen.bound) / cost)
    return {
        "lower_bound": chosen.bound,
        "gap": gap,
        "placements": [entry(each, cost) for each in chosen.tried],
    }


def entry(tried: Tried, best: float | None) -> dict[str, Any]:
    """A placement in ``--json``; ``best``: the lowest cost that was found anywhere."""
    return {
        "placement": tried.name,
        "cost": None if tried.schedule is None else tried.cost,
        "lower_bound": tried.bound,
        "assumed": tried.note or None,
        "reason": tried.why_not or (None if tried.schedule else _not_searched(tried, best)),
    }


def _not_searched(tried: Tried, best: float | None) -> str:
    beaten = best is not None and tried.bound is not None and tried.bound >= best * (1 - CLOSED)
    return f"not searched: {'cannot be shorter' if beaten else 'no time left'}"


def entries(tried: list[dict[str, Any]]) -> str:
    """A table of them."""
    from pipeloom.ir.units import duration

    def shown(value: float | None) -> str:
        return "-" if value is None else duration(value)

    rows = [
        [
            each["placement"],
            shown(each["cost"]),
            shown(each["lower_bound"]),
            "; ".join(part for part in (each["reason"], each.get("assumed")) if part),
        ]
        for each in tried
    ]
    return table(["placement", "found", "bound", ""], rows)


def text(chosen: Chosen) -> str:
    """A table, and how far the best is from the best of all these placements."""
    from pipeloom.report.summaries import percent

    answer = as_json(chosen)
    lines = entries(answer["placements"])
    if answer["gap"] is None:
        return lines
    return f"{lines}\nof all these placements: at most {percent(answer['gap'])} from the best"
