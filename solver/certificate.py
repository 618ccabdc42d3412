"""Finds the best lower bound that can be certified, and the argument that proves it.

:mod:`pipeloom.ir.verify.certificate` defines the arguments and checks them. For closed forms the
checker computes the numbers itself. For the argument ``moments`` it needs the paths by which the
graph of moments (:mod:`.bounds.moments`) refutes all costs below the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.certificate import CLOSED_FORMS
from pipeloom.ir.verify.certificates.least import NotProvenError
from pipeloom.ir.verify.certificates.moments import check_moments
from pipeloom.ir.verify.schedule_facts import Facts, read_facts

from .bounds.general import busy
from .bounds.low_memory.activation_slots import slot_spans
from .bounds.moment_graph import Lemma
from .bounds.moments import moment_graph
from .core.linear_instance import LinearInstance
from .core.relaxations import relaxed, relaxed_at_backwards
from .core.tolerances import CLOSED
from .core.unlike import least

MARGIN = CLOSED / 2
"""Relative amount by which a certified bound is below the proven one, to allow for rounding."""

_Argument = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Certified:
    """A certified bound: ``argument`` proves that no schedule costs less than ``lower_bound``.

    ``argument`` is a JSON object in the format of :mod:`pipeloom.ir.verify.certificate`.
    """

    lower_bound: float
    argument: _Argument


def certify(schedule: Schedule) -> Certified | None:
    """The best certified lower bound on the cost of all schedules of the schedule's problem.

    It is at most the bound in the schedule's report. Returns None if there is no report, if its
    bound is not finite, or if no argument applies to the problem.
    """
    known = schedule.report.lower_bound if schedule.report else None
    if known is None or not isfinite(known):
        return None
    facts = read_facts(dump_schedule(schedule), "schedule")
    proven = (*_closed_forms(facts, known), *_moments(facts, schedule.problem, known))
    return max(proven, key=lambda found: found.lower_bound, default=None)


def _closed_forms(facts: Facts, known: float) -> Iterator[Certified]:
    """Yield the lower bounds that closed forms prove, each with its argument.

    The form ``work`` gives one bound for each rank, ``slots`` one for each stage, and every other
    form one; forms that prove nothing for the schedule's problem are left out.

    ``facts``: the schedule as the checker has parsed it. ``known``: the bound in the schedule's
    report, which no result exceeds.
    """
    numbers = {"work": ("rank", facts.plan.ranks), "slots": ("stage", facts.plan.stages)}
    for kind, proven in CLOSED_FORMS.items():
        key, number = numbers.get(kind, ("", 1))
        for at in range(number):
            argument = {"kind": kind} | ({key: at} if key else {})
            with suppress(NotProvenError):
                value = float(proven(facts, argument))
                yield Certified(min(value, known) * (1 - MARGIN), argument)


def _moments(facts: Facts, problem: Problem, known: float) -> Iterator[Certified]:
    """Yield the lower bounds by moments that the checker accepts in exact arithmetic.

    Each of the relaxations :func:`.core.relaxations.relaxed` and
    :func:`.core.relaxations.relaxed_at_backwards` gives at most one. There are none if some rank
    has several stages.

    ``facts``: the schedule as the checker has parsed it. ``known``: the bound in the schedule's
    report, which no result exceeds.
    """
    with suppress(InfeasibleError, InputError):
        alike = least(problem) if problem.profile.unlike else problem
        for bare in (relaxed(alike), relaxed_at_backwards(alike)):
            linear = LinearInstance.of(bare)
            if linear is None:
                continue
            graph = moment_graph(bare, slot_spans(linear), memory_time=False)
            closing, names = graph.closing(), list(graph.names)
            value = min(known, closing.least(float(busy(bare).max()))) * (1 - MARGIN)
            ends = list(zip(closing.tail.tolist(), closing.head.tolist(), strict=True))
            steps = needed(closing.refutation(value), ends)
            paths = [[names[node] for node in path] for path in steps]
            with suppress(NotProvenError):
                check_moments(facts, Fraction(value), paths)
                yield Certified(value, {"kind": "moments", "paths": paths})


def needed(steps: list[Lemma], ends: list[tuple[int, int]]) -> list[list[int]]:
    """Return the paths that the last step of a refutation depends on, directly or through others.

    Each path is a list of nodes; the paths are in the order of their steps. The last one is the
    positive cycle, with its first node repeated at the end. The list is empty if there are no
    steps.

    ``steps``: the result of :meth:`.bounds.moment_graph.Closing.refutation`. ``ends``: the tail and
    head of each arc. A step with a path depends on the earlier steps that set the lengths of the
    arcs along the path. A step that lengthens the arc of a pay has no path and adds none to the
    result; it depends on the earlier steps that set the two bounds of the pay's link.
    """
    found = dict[int, list[int]]()
    open_ = [len(steps) - 1] if steps else []
    while open_:
        at = open_.pop()
        if at in found:
            continue
        path = steps[at].path
        found[at] = [*path, path[0]] if steps[at].arc < 0 else path
        pairs = set(zip(found[at], found[at][1:], strict=False))
        if not path:
            link = ends[steps[at].arc - 2]
            pairs = {link, link[::-1]}
        for pair in pairs:
            own = [k for k in range(at) if steps[k].arc >= 0 and ends[steps[k].arc] == pair]
            open_ += [max(own, key=lambda k: steps[k].length)] if own else []
    return [found[at] for at in sorted(found) if found[at]]
