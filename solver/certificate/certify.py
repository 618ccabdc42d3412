"""The best bound that has a certificate, and its argument.

:mod:`pipeloom.ir.verify.certificate` has the arguments, and checks them. Those of inequalities are
found here, by branch and bound over counts (:mod:`.refutation`): each leaf is a linear program, and
its dual values are the multipliers. The numbers of arguments in closed form the checker finds by
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.certificate import CLOSED_FORMS
from pipeloom.ir.verify.certificates.linear import LinearFacts
from pipeloom.ir.verify.certificates.rows import NotProvenError
from pipeloom.ir.verify.schedule_facts import Facts, read_facts

from ..bounds import lower_bounds
from ..bounds.unlike import Figures, longest_pass
from ..core.relaxations import plain, unfused
from ..core.stopping import NEVER, FirstOf, StoppingCriterion, TimeLimit
from ..core.tolerances import CLOSED
from .refutation import MARGIN, refuted

ATTEMPTS = 20
ENOUGH = 1 - 0.9 * CLOSED  # of the bound: proves it
CLOSE = 3e-4  # of the bound: no nearer are lower ones tried


@dataclass(frozen=True, slots=True)
class Certified:
    """``lower_bound``: no schedule costs less, by ``argument``, a JSON object."""

    lower_bound: float
    argument: dict[str, Any]


def certify(
    schedule: Schedule, seconds: float = inf, should_stop: StoppingCriterion = NEVER
) -> Certified | None:
    """The best bound on the cost of all schedules of the instance that has a certificate, at most
    the one of the schedule's report. None where no argument speaks of the instance.
    """
    known = schedule.report.lower_bound if schedule.report else None
    if known is None or not isfinite(known):
        return None
    facts = read_facts(dump_schedule(schedule), "schedule")
    simple = simple_arguments(facts.plan.ranks)
    best = max(_proven(facts, simple, known), key=_value, default=None)
    if best is None:
        return None
    if best.lower_bound < known * ENOUGH:
        more = closed_forms(schedule.problem, best.lower_bound)
        best = max([best, *_proven(facts, more, known)], key=_value)
    stop = FirstOf(TimeLimit(seconds), should_stop)
    if best.lower_bound < known * ENOUGH:
        with suppress(NotProvenError):
            best = max(best, _by_moments(facts, known, stop) or best, key=_value)
    return best


def _value(found: Certified) -> float:
    return found.lower_bound


def _proven(facts: Facts, arguments: Iterable[dict[str, Any]], known: float) -> Iterator[Certified]:
    for argument in arguments:
        with suppress(NotProvenError):
            value = float(CLOSED_FORMS[argument["kind"]](facts, argument))
            yield Certified(min(value, known) * (1 - MARGIN), argument)


def _by_moments(facts: Facts, known: float, stop: StoppingCriterion) -> Certified | None:
    instance = LinearFacts.of(facts)
    best: Certified | None = None
    value = failed = known * (1 - MARGIN)
    for _ in range(ATTEMPTS):
        refutation, nodes = refuted(instance, value, stop)
        if nodes is not None:
            best = _of_moments(value, nodes)
        else:
            failed = value
        if best is not None:  # between that and what could not be refuted
            if stop() or failed - best.lower_bound <= CLOSE * known:
                break
            value = (best.lower_bound + failed) / 2
            continue
        value *= (refutation.root if stop() else refutation.left) * (1 - MARGIN)
        if stop():  # what the relaxation refutes takes no time
            nodes = refuted(instance, value)[1] if 0 < value < known else None
            return _of_moments(value, nodes) if nodes else None
        if value <= 0:
            return None
    return best


def _of_moments(value: float, nodes: list[dict[str, Any]]) -> Certified:
    return Certified(value, {"kind": "moments", "nodes": nodes})


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
