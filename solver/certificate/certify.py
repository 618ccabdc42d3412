"""The best bound that has a certificate, and its argument.

:mod:`pipeloom.ir.verify.certificate` has the arguments, and checks them. Those of inequalities are
found here: by branch and bound over counts (:mod:`.refutation`), each leaf a linear program whose
dual values are the multipliers, or as one such program. Bounds by search have one where the checker
can try all orders itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from typing import Any

from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.certificate import CLOSED_FORMS, INSTANCES, SEARCHED
from pipeloom.ir.verify.certificates.orders import check_every_order
from pipeloom.ir.verify.certificates.rows import NotProvenError
from pipeloom.ir.verify.schedule_facts import Facts, read_facts

from ..core.stopping import NEVER, FirstOf, StoppingCriterion, TimeLimit
from ..core.tolerances import CLOSED
from .closed_forms import closed_forms, simple_arguments
from .flow import refuted_by_flow
from .refutation import MARGIN, refuted

ATTEMPTS = 20
ENOUGH = 1 - 0.9 * CLOSED  # of the bound: proves it
CLOSE = 3e-4  # of the bound: no nearer are lower ones tried
BEGINNINGS = 30_000  # up to which all orders are tried


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
    for refute in _refutations(schedule):
        if best.lower_bound >= known * ENOUGH:
            break
        with suppress(NotProvenError):
            best = max(best, refute(facts, known, stop) or best, key=_value)
    return best


def _value(found: Certified) -> float:
    return found.lower_bound


def _proven(facts: Facts, arguments: Iterable[dict[str, Any]], known: float) -> Iterator[Certified]:
    for argument in arguments:
        with suppress(NotProvenError):
            value = float(CLOSED_FORMS[argument["kind"]](facts, argument))
            yield Certified(min(value, known) * (1 - MARGIN), argument)


def _refutations(
    schedule: Schedule,
) -> list[Callable[[Facts, float, StoppingCriterion], Certified | None]]:
    """The ways to refute that a schedule costs less, the likeliest first."""

    def by_flow(facts: Facts, known: float, stop: StoppingCriterion) -> Certified | None:
        found = refuted_by_flow(schedule, facts, known, stop)
        return found and Certified(*found)

    name = schedule.report.bound_name if schedule.report else None
    trees = [_moments("moments"), _moments("rank-moments")]
    if name in SEARCHED:
        return [_by_orders, *trees, by_flow]
    return [by_flow, *trees] if name == "rank-flow" else [*trees, by_flow]


def _by_orders(facts: Facts, known: float, _: StoppingCriterion) -> Certified | None:
    value = known * (1 - MARGIN)
    check_every_order(facts, Fraction(value), BEGINNINGS)
    return Certified(value, {"kind": "every-order"})


def _moments(kind: str) -> Callable[[Facts, float, StoppingCriterion], Certified | None]:
    def by_moments(facts: Facts, known: float, stop: StoppingCriterion) -> Certified | None:
        instance = INSTANCES[kind](facts, {})
        best: Certified | None = None
        value = failed = known * (1 - MARGIN)
        for _ in range(ATTEMPTS):
            refutation, nodes = refuted(instance, value, stop)
            if nodes is not None:
                best = Certified(value, {"kind": kind, "nodes": nodes})
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
                return Certified(value, {"kind": kind, "nodes": nodes}) if nodes else None
            if value <= 0:
                return None
        return best

    return by_moments
