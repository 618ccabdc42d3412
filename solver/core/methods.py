"""The methods that find orders. The reports of schedules name them as ``method``."""

from __future__ import annotations

from enum import StrEnum

from pipeloom.ir.model.schedule import OPTIMIZED


class Method(StrEnum):
    """The way in which an order was found, if no family built it.

    For an order that a family built, reports contain the name of the family instead.
    """

    ONE_AT_A_TIME = "one-at-a-time"
    """One microbatch after the other; every problem has this schedule."""
    START = "start"
    """The order that the caller passed to start from."""
    WARM_START = "warm-start"
    ROUNDS = "rounds"
    """Built in rounds, or by a list scheduler with fixed parameters (:mod:`..construct.linear`)."""
    LIST = "list"
    """A list scheduler whose parameters are searched."""
    PERIODIC = "periodic"
    """A pattern that all microbatches repeat at equal intervals."""
    TAIL = "tail"
    """The end of a schedule, built backwards in time (:mod:`..construct.backward_tail`)."""
    ANNEAL = "anneal"
    """Simulated annealing: moves of ops in an order."""
    FILL = "fill"
    """Simulated annealing of the order of F's and B's; W's fill the idle time between them."""
    PAIR = "pair"
    """Simulated annealing of ops and of pairs, each an F and a BW that run at the same time."""
    UNROLL = "unroll"
    """A schedule of fewer microbatches, extended by repeating a period."""
    SPLICE = "splice"
    """One piece of a schedule is removed, and another one is repeated."""
    WINDOW = "window"
    """Large neighborhood search: CP-SAT on the ops in a time window, with all others fixed."""
    CP_SAT = "cp-sat"
    MILP = "milp"
    WHOLE_STAGES = "whole-stages"
    """A schedule in which chosen stages are recomputed or offloaded entirely, made to fit."""
    REPAIR = "repair"
    """A schedule for larger memory limits, made to fit by recomputation or offload."""
    STREAM = "stream"
    """Coordinate descent on the parameters of weight passing."""
    CARRY = "carry"
    """The order of a schedule for another cut of the layers into stages."""


_LABELS = frozenset(Method)


def family_of(method: str) -> str:
    """The family in the report of a schedule that ``method`` found.

    That is ``method`` itself if it is the name of a family, otherwise ``optimized``.
    """
    return OPTIMIZED if method in _LABELS else method
