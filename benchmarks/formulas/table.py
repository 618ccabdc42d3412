"""The cells as text: one size in full, then where published and built differ anywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from .study import METHODS, Cell, Times

SHOWN = 8  # ranks of the table


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Published / built at 8 ranks; the number of microbatches changes nothing."""
    yield f"{SHOWN} ranks, published / built\n"
    yield "| method | times | bubble | parameters | activations |"
    yield "| --- | --- | --- | --- | --- |"
    seen: set[tuple[str, Times]] = set()
    for one in cells:
        if one.ranks == SHOWN and (one.method, one.times) not in seen:
            seen.add((one.method, one.times))
            figures = (one.bubble, one.parameters, one.activations)
            yield f"| {one.method} | {one.times} | {' | '.join(map(_both, figures))} |"


def _both(pair: tuple[float, float]) -> str:
    return " / ".join(f"{round(value, 3):g}" for value in pair)


def differences(cells: Sequence[Cell]) -> Iterator[str]:
    """A line a method: how many sizes and times give its formulas, with and without its
    condition."""
    groups: defaultdict[tuple[str, bool], list[Cell]] = defaultdict(list)
    for one in cells:
        groups[one.method, one.holds].append(one)
    for (method, holds), found in groups.items():
        equal = sum(one.equal for one in found)
        where = METHODS[method].condition if holds else f"not {METHODS[method].condition}"
        yield f"{method}, {where}: {equal} of {len(found)} equal"
