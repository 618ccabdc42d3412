"""Joint optimization of cut and schedule, compared with optimized schedules for a balanced or an
even cut."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from pipeloom import InfeasibleError, optimize

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain, violations
from .models import SEEDS, Instance, instance

PART, SECONDS, ENOUGH = "partition", 5.5, 20
OTHERS = ("balanced", "even")
SAME = 1e-6
"""The relative tolerance within which costs count as equal."""


def cases(size: Size) -> Iterator[Case]:
    for seed in SEEDS[1:3] if size == "small" else SEEDS:
        yield Case(PART, f"seed {seed}", {"seed": seed}, timed=True)


def measure(case: Case) -> Row:
    """The cost of one instance with each way to cut it, with the same time limit.

    Raises InfeasibleError if joint optimization finds no schedule that fits in memory.
    """
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
        "ways": {way: _way(given, way) for way in ("joint", *OTHERS)},
    }


def _way(given: Instance, way: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"placement": given.placement.name, "objective": given.objective.value}
    asked |= {"partition": way, "time_limit": SECONDS}
    try:
        found = optimize(given.profile, given.microbatches, **asked)
    except InfeasibleError as error:
        if way == "joint":
            raise
        return {"cost": None, "why_not": str(error)}
    assert not violations(found.schedule)
    return {"cost": found.cost, "bound_of_all_cuts": found.lower_bound}


def gain(cell: Row, other: str) -> float | None:
    """The relative saving of the joint optimization compared with ``other``, or None if the latter
    has no schedule."""
    cost = cell["ways"][other]["cost"]
    return None if cost is None else 1 - cell["ways"]["joint"]["cost"] / cost


def better(cell: Row) -> bool:
    """Whether joint optimization costs less than both other ways."""
    gains = [gain(cell, other) for other in OTHERS]
    return all(each is None or each > SAME for each in gains)


def gap(cell: Row) -> float:
    """The gap of the joint schedule to the bound for all cuts."""
    joint = cell["ways"]["joint"]
    return float(max(0.0, 1 - joint["bound_of_all_cuts"] / joint["cost"]))


def judge(rows: Rows) -> Iterator[Claim]:
    ahead = sum(map(better, rows))
    words = (
        "Optimizing cut and schedule together costs less than scheduling a balanced or an even cut "
        f"on {ahead} of {len(rows)} models."
    )
    yield Claim(PART, words, ahead >= ENOUGH * len(rows) / len(SEEDS))
    for other in OTHERS:
        yield Claim(PART, _against(rows, other))
    gaps = list(map(gap, rows))
    met = sum(each <= SAME for each in gaps)
    words = f"{met} schedules reach the bound for all cuts; the median gap is {median(gaps):.1%}."
    yield Claim(PART, words)


def _against(rows: Rows, other: str) -> str:
    known = [each for row in rows if (each := gain(row, other)) is not None]
    more, less = sum(each > SAME for each in known), sum(each < -SAME for each in known)
    words = (
        f"Compared with the {other} cut, {more} of {len(known)} models that fit in both cases cost "
        f"less, {less} more, {len(known) - more - less} the same"
    )
    return f"{words}; the median cost is {median(known):.1%} lower." if known else f"{words}."


def _more(other: str) -> Column:
    def cell(row: Row) -> str:
        more = gain(row, other)
        return "does not fit" if more is None else f"{1 / (1 - more) - 1:+.1%}"

    return Column(other, cell)


def _joint(row: Row) -> str:
    mark = "**" if better(row) else ""
    return f"{mark}{row['ways']['joint']['cost']:.4g}{mark}"


columns = {
    PART: Table(
        *plain("seed ranks blocks microbatches placement objective limit"),
        Column("joint", _joint),
        *map(_more, OTHERS),
        Column("gap", gap, ".1%"),
    )
}
