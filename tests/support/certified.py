"""Facts of an instance as those who check certificates have them."""

from __future__ import annotations

from typing import Any

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Report, Schedule
from pipeloom.ir.verify.schedule_facts import Facts, read_facts
from pipeloom.solver.construct.one_at_a_time import one_at_a_time


def document_of(problem: Problem) -> dict[str, Any]:
    """A schedule of the problem, that claims a bound of 0."""
    found = timed(Schedule(problem, one_at_a_time(problem)))
    report = Report(problem.objective, "any", lower_bound=0.0)
    return dump_schedule(Schedule(problem, found.order, timing=found.timing, report=report))


def facts_of(problem: Problem) -> Facts:
    return read_facts(document_of(problem), "schedule")
