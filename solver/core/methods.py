"""The methods that find orders: the labels that results carry as ``method``."""

from __future__ import annotations

from enum import StrEnum

from pipeloom.ir.model.schedule import OPTIMIZED


class Method(StrEnum):
    """How an order was found. That of a family has the family's name as its method."""

    ONE_AT_A_TIME = "one-at-a-time"
    """One op after the other: always there, never good."""
    START = "start"
    """Given by the caller."""
    WARM_START = "warm-start"
    ROUNDS = "rounds"
    """Built in rounds, or by a list with fixed parameters (:mod:`..construct.linear`)."""
    LIST = "list"
    """A list scheduler whose parameters are searched."""
    PERIODIC = "periodic"
    """One step that all microbatches repeat."""
    TAIL = "tail"
    """The ends built backwards (:mod:`..construct.backward_tail`)."""
    ANNEAL = "anneal"
    """Moves of ops in an order."""
    FILL = "fill"
    """Moves of F's and B's, W's where there is time between them."""
    PAIR = "pair"
    """Moves of ops and of pairs of F and BW that run at once."""
    UNROLL = "unroll"
    """A schedule of fewer microbatches made longer."""
    SPLICE = "splice"
    """A piece of a schedule left out, another one repeated."""
    PATTERN = "pattern"
    """A schedule of the mean microbatch, filled in with unlike ones."""
    WINDOW = "window"
    """CP-SAT on what runs within some time, the rest fixed."""
    CP_SAT = "cp-sat"
    MILP = "milp"
    WHOLE_STAGES = "whole-stages"
    """Recomputation or offload on whole stages."""
    FUSE = "fuse"
    """B's and W's that are cheaper as one op, joined on whole stages."""
    REPAIR = "repair"
    """A schedule for more memory, made to fit by recomputation or offload."""
    STREAM = "stream"
    """Parameters of weight passing, searched by descent."""
    CARRY = "carry"
    """The order of another cut of the layers."""


_LABELS = frozenset(Method)


def family_of(method: str) -> str:
    """The family of a schedule that ``method`` found: a method that is none of :class:`Method` is a
    family's name."""
    return OPTIMIZED if method in _LABELS else method
