"""Cut and schedule together, against a balanced and an even cut scheduled afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise
from statistics import median
from time import monotonic
from typing import Any

from pipeloom import Problem, Schedule, solve
from pipeloom.solver import Budget, Order, best_partition
from pipeloom.solver.partition.candidate_pool import Way

from .. import Case, Claim, Column, Row, Rows, Size, Table, violations
from .models import SEEDS, Instance, instance

PART, SECONDS, ENOUGH = "partition", 5.5, 20
OTHERS = ("balanced", "even")
SAME = 1e-6
"""Costs that differ by less, relative, are equal."""


def cases(size: Size) -> Iterator[Case]:
    for seed in SEEDS[1:3] if size == "small" else SEEDS:
        yield Case(PART, f"seed {seed}", {"seed": seed}, timed=True)


def measure(case: Case) -> Row:
    """The costs that the ways reach on one instance, with as much time for each."""
    given = instance(case.given["seed"])
    return {
        "seed": case.given["seed"],
        "ranks": given.profile.ranks,
        "blocks": given.blocks,
        "microbatches": given.microbatches,
        "placement": given.placement.name,
        "objective": given.objective.value,
        "limit": given.limit,
        "seconds_a_way": SECONDS,
        "ways": {way.value: _way(given, way, SECONDS) for way in Way},
    }


def _way(given: Instance, way: Way, seconds: float) -> dict[str, Any]:
    began, seeds = monotonic(), count()

    def search(problem: Problem, name: str, share: float, start: Order | None) -> Schedule:
        return solve(problem, time_limit=seconds * share, start=start, seed=next(seeds))

    found = best_partition(
        given.profile,
        given.microbatches,
        [given.placement],
        search,
        way=way,
        objective=given.objective,
        budget=Budget(seconds=seconds),
    )
    took = round(monotonic() - began, 1)
    if found.best is None:
        return {"cost": None, "why_not": found.why_not[given.placement.name], "seconds": took}
    assert found.best.schedule is not None
    assert not violations(found.best.schedule)
    sizes = [b - a for a, b in pairwise((*found.best.cut, len(given.profile.layers)))]
    return {
        "cost": found.best.cost,
        "layers": sizes,
        "bound_of_the_cut": found.best.bound,
        "bound_of_all_cuts": found.bound,
        "seconds": took,
    }


def gain(cell: Row, other: str) -> float | None:
    """How much less the joint way costs than another one; None where either has no schedule."""
    costs = [cell["ways"][way]["cost"] for way in ("joint", other)]
    return None if None in costs else 1 - costs[0] / costs[1]


def better(cell: Row) -> bool:
    """Whether the joint way is strictly better than both others."""
    gains = [gain(cell, other) for other in OTHERS]
    fits = cell["ways"]["joint"]["cost"] is not None
    return fits and all(each is None or each > SAME for each in gains)


def gap(cell: Row) -> float | None:
    """How far any cut could be better than the joint way's schedule, at most; None where it has
    none."""
    joint = cell["ways"]["joint"]
    if joint["cost"] is None:
        return None
    bound, cost = float(joint["bound_of_all_cuts"]), float(joint["cost"])
    return max(0.0, 1 - bound / cost)


def judge(rows: Rows) -> Iterator[Claim]:
    ahead = sum(map(better, rows))
    words = (
        "Cut and schedule together are cheaper than both a balanced and an even cut scheduled "
        f"afterwards on {ahead} of {len(rows)} models."
    )
    yield Claim(PART, words, ahead >= ENOUGH * len(rows) / len(SEEDS))
    for other in OTHERS:
        yield Claim(PART, _against(rows, other))
    gaps = [left for row in rows if (left := gap(row)) is not None]
    met = sum(left <= SAME for left in gaps)
    yield Claim(
        PART, f"The bound on all cuts is met in {met}, the median gap is {median(gaps):.1%}."
    )


def _against(rows: Rows, other: str) -> str:
    gains = [gain(row, other) for row in rows]
    known = [each for each in gains if each is not None]
    more, less = sum(each > SAME for each in known), sum(each < -SAME for each in known)
    words = (
        f"Against the {other} cut: better {more}, worse {less}, equal {len(known) - more - less}"
    )
    words += f", one of both does not fit {len(gains) - len(known)}"
    return f"{words}; {median(known):.1%} less in the median." if known else f"{words}."


def _more(other: str) -> Column:
    def cell(row: Row) -> str:
        costs = [row["ways"][way]["cost"] for way in (other, "joint")]
        if costs[0] is None:
            return "does not fit"
        return f"{costs[0]:.4g}" if costs[1] is None else f"{costs[0] / costs[1] - 1:+.1%}"

    return Column(other, cell)


def _joint(row: Row) -> str:
    cost, mark = row["ways"]["joint"]["cost"], "**" if better(row) else ""
    return "does not fit" if cost is None else f"{mark}{cost:.4g}{mark}"


_SHAPE = ("seed", "ranks", "blocks", "microbatches", "placement", "objective", "limit")
columns = {
    PART: Table(
        [
            *(Column(key, key) for key in _SHAPE),
            Column("joint", _joint),
            *map(_more, OTHERS),
            Column("gap", gap, ".1%"),
        ]
    )
}
