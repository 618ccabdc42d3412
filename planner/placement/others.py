"""With a given placement: the line on how much less other placements may cost, by their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.units import duration
from pipeloom.report.summaries import percent
from pipeloom.solver.core.tolerances import CLOSED
from pipeloom.solver.placement.search import bounded_placements
from pipeloom.solver.placement.successive_halving import Contender

from ..explain.answer import Answer

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
    profile: Profile, microbatches: int, own: Placement, **limits: Any
) -> dict[str, float]:
    """The bounds of all placements but for an answer's ``own``, as of :func:`bounded_placements`,
    which takes ``limits``."""
    if profile.num_stages % profile.ranks:
        return {}
    entries = bounded_placements(profile, microbatches, copies=1, **limits)
    fit = [one for one in entries if isinstance(one, Contender)]
    return {one.name: one.bound for one in fit if one.problem.placement != own}
