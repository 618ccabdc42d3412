"""Bytes that the weight-passing families send, counted on their schedules, in elements of H^2 a
layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeloom.ir.cost.traffic import traffic
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import FAMILIES, build_family
from pipeloom.solver.families.weights.ring import RingFamily

from .bubbles import TURNS

RANKS, FEW, MANY = 8, 32, 64  # P, and two M between which the ramps cancel
LAYER = 12.0  # elements of a layer's weights, in H^2


def counts() -> list[dict[str, Any]]:
    """The elements that each family sends in its steady state over each link of the ring.

    ``turn``: in one of its own turns. ``microbatch``: for one microbatch of a layer. ``turns``: how
    many turns that takes. ``ops``: how many of a microbatch's F, B and W fall in a turn.
    """
    return [_row(name) for name in TURNS]


def _row(name: str) -> dict[str, Any]:
    microbatch = _sent(name, MANY) - _sent(name, FEW)
    turns = (_turns(name, MANY) - _turns(name, FEW)) / (MANY - FEW)
    elements = LAYER * microbatch / (MANY - FEW)
    return {
        "family": name,
        "turns": turns,
        "ops": 3 / turns,
        "turn": elements / turns,
        "microbatch": elements,
    }


def _sent(name: str, count: int) -> float:
    """Stages' worth from each rank to the next, in an iteration; between any two it is the same.

    What goes to an owner or comes from it at the ends does not depend on ``count``.
    """
    unit = Profile((StageProfile(1.0, 1.0, 1.0, weight_bytes=1.0),) * RANKS, RANKS)
    sent = traffic(build_family(name, unit, count))
    return float(np.diagonal(np.roll(sent, -1, axis=1)).min())


def _turns(name: str, count: int) -> int:
    """The number of turns from the first that has an op to the last."""
    family = FAMILIES[name]
    assert isinstance(family, RingFamily)
    return 1 + max(turn for row in family.turns(RANKS, count).rows for turn, _ in row)
