"""Arguments in closed form, whose numbers the checker finds by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem

from ..bounds import lower_bounds
from ..bounds.unlike import Figures, longest_pass
from ..core.relaxations import plain, unfused

_Argument = dict[str, Any]
_OF_RANK, _OF_STAGE = ("memory-time", "head-tail"), ("slots", "crossings")


def simple_arguments(ranks: int) -> list[_Argument]:
    """The arguments of any problem, which take no time."""
    return [*({"kind": "work", "rank": rank} for rank in range(ranks)), {"kind": "critical-path"}]


def closed_forms(problem: Problem, least: float) -> Iterator[_Argument]:
    """The arguments of the bounds in closed form above ``least``, that of the best bound first."""
    with suppress(InfeasibleError, InputError):
        bounds = [bound for bound in lower_bounds(problem) if bound.value > least]
        for bound in sorted(bounds, key=lambda bound: -bound.value):
            if bound.name == "arrivals":
                yield {"kind": "arrivals"}
            elif bound.name in _OF_STAGE and bound.rank is not None:
                stage = problem.placement.stages_of(bound.rank)[0]
                yield {"kind": bound.name, "stage": stage}
            elif problem.profile.unlike and bound.name in _OF_RANK and bound.rank is not None:
                yield {"kind": bound.name, "rank": bound.rank}
            elif problem.profile.unlike and bound.name == "through":
                yield from _through(problem)


def _through(problem: Problem) -> Iterator[_Argument]:
    if problem.placement.passing is Passing.ACTIVATIONS:
        found = longest_pass(Figures.of(plain(unfused(problem))))
        chosen = {"microbatches": list(found.microbatches)}
        yield {"kind": "through", "stage": found.stage, "by": found.by} | chosen
