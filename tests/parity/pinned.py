"""The pinned cases: those of the cover. ``torch.compile`` takes seconds a case: a second cover has
its pairs, whose cases are tried by the slow tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from .cases import Case
from .cover import rows
from .features import FEATURES, Choices, Feature

COMPILED = (("compiled", "compiled"),)


@cache
def pinned() -> list[Case]:
    cover = rows(without=COMPILED)
    return _cases([*cover, *_again(cover)])


@cache
def compiled() -> list[Case]:
    return _cases(rows(only=COMPILED))


def _cases(cover: list[dict[str, str]]) -> list[Case]:
    """Each feature takes its choices in turn, row by row."""
    taken, found = Counter[Feature](), list[Case]()
    for number, row in enumerate(cover):
        choices: Choices = {}
        for axis, value in row.items():
            some = FEATURES[axis][value]
            choices |= some[taken[axis, value] % len(some)]
        taken.update(row.items())
        found.append(Case.of(0, number, choices))
    return found


def _again(cover: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """For each plan that no row takes, one in which ranks are threads that has its feature."""
    for plan, some in FEATURES["plan"].items():
        rows = [row for row in cover if row["plan"] == plan]
        threads = [row for row in rows if row["mesh"] == "none"]
        yield from threads[: max(0, len(some) - len(rows))]
