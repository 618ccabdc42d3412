"""The cost of a schedule, its status under a lower bound, and whether it keeps its limits."""

from __future__ import annotations

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule, Status, Timing

from .tolerances import CLOSED, ROUNDING


def objective_cost(schedule: Schedule) -> float:
    """The cost by the problem's objective, without averaging over replicas."""
    timing = schedule.timing or simulate(schedule)
    return timing.cost(schedule.problem.objective)


def iteration_time(schedule: Schedule) -> float:
    """The cost by the problem's objective with averaging over replicas, of a timed schedule."""
    return schedule.known_timing.iteration_time(schedule.problem.objective)


def cost_and_memory(schedule: Schedule) -> tuple[float, float]:
    """The iteration time, rounded so that equal ones are equal, then the largest peak memory: the
    order of timed schedules from the best on."""
    return float(f"{iteration_time(schedule):.9g}"), max(schedule.known_timing.peak_memory)


def status_under(bound: float, cost: float) -> Status:
    """The status of a schedule of ``cost`` where none costs less than ``bound``."""
    return Status.OPTIMAL if cost - bound <= CLOSED * cost else Status.FEASIBLE


def within_memory(problem: Problem, timing: Timing) -> bool:
    """Whether every rank keeps its memory limit."""
    ranks = zip(timing.peak_memory, problem.memory_limit, strict=True)
    return all(peak <= limit * (1 + ROUNDING) for peak, limit in ranks)
