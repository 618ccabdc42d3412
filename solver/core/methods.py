"""The methods that find orders. Results carry them as ``method``."""

from __future__ import annotations

from enum import StrEnum

from pipeloom.ir.model.schedule import OPTIMIZED


class Method(StrEnum):
    """How an order was found. The method of a family's order is the family's name."""

    ONE_AT_A_TIME = "one-at-a-time"
    """One microbatch after the other: every problem has this schedule."""
    START = "start"
    """An order that the caller passed."""
    WARM_START = "warm-start"
    ROUNDS = "rounds"
    """Built in rounds, or by a list scheduler with fixed parameters (:mod:`..construct.linear`)."""
    LIST = "list"
    """A list scheduler whose parameters are searched."""
    PERIODIC = "periodic"
    """A pattern that all microbatches repeat at equal intervals."""
    TAIL = "tail"
    """The end of a schedule built backwards in time (:mod:`..construct.backward_tail`)."""
    ANNEAL = "anneal"
    """Simulated annealing: moves of ops in an order."""
    FILL = "fill"
    """Simulated annealing of F's and B's; W's fill the idle time between them."""
    PAIR = "pair"
    """Simulated annealing of ops and of pairs, an F and a BW that run at once."""
    UNROLL = "unroll"
    """A schedule of fewer microbatches, extended by repeating a period."""
    SPLICE = "splice"
    """One piece of a schedule is removed and another one repeated."""
    PATTERN = "pattern"
    """A schedule of the mean microbatch, filled with the unlike ones."""
    WINDOW = "window"
    """Large neighbourhood search: CP-SAT on the ops in a time window, the others fixed."""
    CP_SAT = "cp-sat"
    MILP = "milp"
    WHOLE_STAGES = "whole-stages"
    """A schedule for chosen stages recomputed or offloaded, made to fit."""
    REPAIR = "repair"
    """A schedule for more memory, made to fit by recomputation or offload."""
    STREAM = "stream"
    """Coordinate descent on the parameters of weight passing."""
    CARRY = "carry"
    """The order of a schedule for another cut of the layers."""


_LABELS = frozenset(Method)


def family_of(method: str) -> str:
    """The family of a schedule; a method that is not in :class:`Method` is a family's name."""
    return OPTIMIZED if method in _LABELS else method
