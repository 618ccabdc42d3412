"""The cost of a schedule, its status given a lower bound, and whether it keeps memory limits."""

from __future__ import annotations

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule, Status, Timing

from .tolerances import CLOSED, ROUNDING


def objective_cost(schedule: Schedule) -> float:
    """The cost of ``schedule``, without the time to average gradients over replicas."""
    timing = schedule.timing or simulate(schedule)
    return timing.cost(schedule.problem.objective)


def iteration_time(schedule: Schedule) -> float:
    """The cost of ``schedule``, including the time to average gradients over replicas.

    The schedule must contain its timing.
    """
    return schedule.known_timing.iteration_time(schedule.problem.objective)


def cost_and_memory(schedule: Schedule) -> tuple[float, float]:
    """Return a sort key that puts the best schedule first: (iteration time, largest peak memory).

    The iteration time is rounded to nine significant digits, so that schedules whose times differ
    only by rounding errors are sorted by memory. The schedule must contain its timing.
    """
    return float(f"{iteration_time(schedule):.9g}"), max(schedule.known_timing.peak_memory)


def status_under(bound: float, cost: float) -> Status:
    """The status of a schedule of cost ``cost``, if ``bound`` is a lower bound on the cost."""
    return Status.OPTIMAL if cost - bound <= CLOSED * cost else Status.FEASIBLE


def within_memory(problem: Problem, timing: Timing) -> bool:
    """Whether the peak memory of every rank in ``timing`` is within the rank's limit."""
    ranks = zip(timing.peak_memory, problem.memory_limit, strict=True)
    return all(peak <= limit * (1 + ROUNDING) for peak, limit in ranks)
