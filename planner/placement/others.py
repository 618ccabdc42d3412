"""With a given placement: the line on how much less other placements may cost, by their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.units import duration
from pipeloom.report.summaries import percent
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.tolerances import CLOSED
from pipeloom.solver.placement.search import placements, room

from ..explain.answer import Answer
from ..inputs.placement_spec import PlacementSpec

MOST_BOUNDED = 20_000
"""Ops of a schedule; for more, other placements are not bounded."""


def with_others(answer: Answer, bounds: Callable[[], Mapping[str, float]]) -> Answer:
    """``answer`` with a line on the least of ``bounds``, of other placements by their names.

    Nothing is added where none may cost less, or where bounds would take long.
    """
    found = bounds() if answer.schedule.num_ops <= MOST_BOUNDED else {}
    if not found or answer.cost <= 0:
        return answer
    name = min(found, key=lambda name: found[name])
    share = 1 - found[name] / answer.cost
    if share <= CLOSED:
        return answer
    line = (
        f"another placement may cost up to {percent(share)} less: {name}, by its bound of "
        f"{duration(found[name])} (without --placement all are tried)"
    )
    words = f"{answer.words}\n{line}" if answer.words else line
    other = {"other_placement": {"placement": name, "lower_bound": found[name]}}
    return replace(answer, words=words, facts=answer.facts | other)


def other_bounds(
    profile: Profile,
    given: Problem,
    make: Callable[[PlacementSpec], Problem],
    kinds: Collection[PlacementKind] = tuple(PlacementKind),
) -> dict[str, float]:
    """The bounds of the placements of these ``kinds`` but for that of ``given``; ``make``: the
    problem of another placement."""
    if profile.num_stages % profile.ranks:
        return {}
    names = [one.name for _, one in placements(profile, kinds) if one != given.placement]
    return {name: _bound(make(PlacementSpec.of(name))) for name in names}


def _bound(problem: Problem) -> float:
    """Infinite where nothing fits, on the devices too."""
    limit = room(problem.profile, problem.placement, problem.memory_limit)
    try:
        return lower_bound(replace(problem, memory_limit=limit)).value
    except InfeasibleError:
        return math.inf
