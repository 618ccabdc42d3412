"""A small set of cases that contains all compatible pairs of features (pairwise testing).

It is chosen greedily from a fixed seed. Features are numbered, and a set of features is an integer
with one bit for each. The pinned cases are those of the cover. As ``torch.compile`` takes seconds
per case, a second cover contains its pairs; its cases are slow tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random

from .cases import Case
from .features import CONFLICTS, FEATURES, PLAIN, Choices, Feature

TRIED = 8  # candidates for each row that is kept
COSTS = {
    **{("stages_as", "graphs"): 4},
    **{("model", "hugging"): 3, ("ranks", "3"): 2, ("ranks", "4"): 3},
    **{("mesh", mesh): 4 for mesh in FEATURES["mesh"] if mesh != "none"},
}
"""How many more new pairs a slow feature must have than another of its axis, to be chosen."""
TRACED = {"model": "hugging", "stages_as": "graphs"}
"""Features that only one, otherwise plain case combines: tracing such a layer takes a second."""
FEW: Choices = {"microbatches": 2}
"""The number of microbatches in cases with processes or graphs on at most two ranks.

These cases test meshes and traces, not long sequences of microbatches.
"""
ALL: list[Feature] = [(axis, value) for axis, values in FEATURES.items() for value in values]
AT = {feature: i for i, feature in enumerate(ALL)}
AXES = [[AT[axis, value] for value in values] for axis, values in FEATURES.items()]


@cache
def allowed() -> list[int]:
    """For each feature, the features of other axes that do not conflict with it, and itself."""
    found = [(1 << len(ALL)) - 1] * len(ALL)
    apart = [pair for axis in AXES for pair in combinations(axis, 2)]
    apart += [(AT[one], AT[other]) for each in CONFLICTS for one, other in each.pairs()]
    for i, j in apart:
        found[i] &= ~(1 << j)
        found[j] &= ~(1 << i)
    return found


@cache
def can_meet() -> list[int]:
    """For each feature, the set of features with which some row contains it."""
    found = [0] * len(ALL)
    for i, j in combinations(range(len(ALL)), 2):
        if allowed()[i] >> j & 1 and _completed(allowed()[i] & allowed()[j], bound()):
            found[i] |= 1 << j
            found[j] |= 1 << i
    return found


@cache
def bound() -> list[list[int]]:
    """The axes that occur in a conflict."""
    names = {axis for each in CONFLICTS for pair in each.pairs() for axis, _ in pair}
    return [axis for axis in AXES if ALL[axis[0]][0] in names]


def _completed(left: int, axes: list[list[int]]) -> bool:
    """Whether a choice of one of the features ``left`` on each axis has no conflict."""
    if not axes:
        return True
    first, *rest = axes
    kept = [left & allowed()[i] for i in first if left >> i & 1]
    return any(_completed(each, rest) for each in kept)


def _open(left: int, axes: list[list[int]]) -> bool:
    return all(any(left >> i & 1 for i in axis) for axis in axes)


@cache
def rows(without: tuple[Feature, ...] = (), only: tuple[Feature, ...] = ()) -> list[dict[str, str]]:
    """The cover: rows with one feature of each axis, which together contain all compatible pairs.

    ``without``: features that no row contains. ``only``: cover only pairs with one of these
    features.
    """
    absent = sum(1 << AT[feature] for feature in without)
    missing = [0 if absent >> i & 1 else met & ~absent for i, met in enumerate(can_meet())]
    if only:
        wanted = sum(1 << AT[feature] for feature in only)
        missing = [met if wanted >> i & 1 else met & wanted for i, met in enumerate(missing)]
    draw, found = Random(0), list[dict[str, str]]()
    best = [] if only else [AT[feature] for feature in (PLAIN | TRACED).items()]
    while best or any(missing):
        if not best:
            made = [row for _ in range(TRIED) if (row := _row(missing, ~absent, draw))]
            best = max(made, key=lambda row: _gain(row, missing))
        for i in best:
            missing[i] &= ~sum(1 << j for j in best)
        found.append(dict(ALL[i] for i in sorted(best)))
        best = []
    return found


def _gain(row: list[int], missing: list[int]) -> int:
    chosen = sum(1 << i for i in row)
    return sum((missing[i] & chosen).bit_count() for i in row)


def _row(missing: list[int], left: int, draw: Random) -> list[int]:
    """A random row: a missing pair, and on each other axis the feature with most missing pairs.

    Empty if some axis has no compatible feature left.
    """
    start = draw.choice([(i, others) for i, others in enumerate(missing) if others])
    other = draw.choice([j for j in range(len(ALL)) if start[1] >> j & 1])
    row, chosen = [start[0], other], 1 << start[0] | 1 << other
    left &= allowed()[start[0]] & allowed()[other]
    axes = [axis for axis in AXES if not {*row} & {*axis}]
    draw.shuffle(axes)
    traced = sum(1 << AT[feature] for feature in TRACED.items())
    for n, axis in enumerate(axes):
        gains = [
            ((missing[i] & chosen).bit_count() + draw.random() - COSTS.get(ALL[i], 0), i)
            for i in axis
            if left >> i & 1
        ]
        for _, i in sorted(gains, reverse=True):
            if traced & ~(chosen | 1 << i) and _open(left & allowed()[i], axes[n + 1 :]):
                row, chosen, left = [*row, i], chosen | 1 << i, left & allowed()[i]
                break
        else:
            return []
    return row


def uncovered(cover: Iterable[Mapping[str, str]]) -> list[tuple[Feature, Feature]]:
    """Compatible pairs of features that no row contains."""
    met = {frozenset(pair) for row in cover for pair in combinations(row.items(), 2)}
    return [
        (ALL[i], ALL[j])
        for i, j in combinations(range(len(ALL)), 2)
        if can_meet()[i] >> j & 1 and frozenset((ALL[i], ALL[j])) not in met
    ]


COMPILED = (("compiled", "compiled"),)


@cache
def pinned() -> list[Case]:
    cover = rows(without=COMPILED)
    return _cases([*cover, *_again(cover)])


@cache
def compiled() -> list[Case]:
    return _cases(rows(only=COMPILED))


@cache
def found() -> list[Case]:
    """The cases in ``found.txt``, written as in the message of a failure."""
    lines = Path(__file__).with_name("found.txt").read_text().splitlines()
    return [Case.read(line) for line in lines if not line.startswith("#")]


def _cases(cover: list[dict[str, str]]) -> list[Case]:
    """The cases of the rows; choices of the same feature alternate from row to row."""
    taken, found = Counter[Feature](), list[Case]()
    for number, row in enumerate(cover):
        choices: Choices = {}
        for axis, value in row.items():
            some = FEATURES[axis][value]
            choices |= some[taken[axis, value] % len(some)]
        taken.update(row.items())
        case = Case.of(0, number, choices)
        few = case["ranks"] <= 2 and (case.in_processes or case["stages_as"] != "eager")
        found.append(Case.of(0, number, choices | FEW) if few else case)
    return found


def _again(cover: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Rows with threads as ranks, repeated for plans that have more choices than rows."""
    for plan, some in FEATURES["plan"].items():
        rows = [row for row in cover if row["plan"] == plan]
        threads = [row for row in rows if row["mesh"] == "none"]
        yield from threads[: max(0, len(some) - len(rows))]
