"""Sizes of microbatch from which on to pass weights: by bytes, by formula and by time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from pipeloom.ir.cost.steady_state.send_points import posted_between_ops
from pipeloom.ir.cost.steady_state.steady_state import play_iterations
from pipeloom.ir.cost.traffic import activation_traffic
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile

from ..evaluation.evaluation import Evaluation

SIZES = [4.0**k for k in range(-5, 6)]
"""Sizes of a microbatch at which schemes are compared, in multiples of the profile's."""
HALVINGS = 12

Cost: TypeAlias = Callable[[Evaluation, float], float]
"""The cost of a schedule at a size of microbatch."""


@dataclass(frozen=True)
class Crossover:
    """From which size of microbatch on a scheme wins, in multiples of the profile's; None: never.

    ``link``: fewer bytes over the busiest link. ``formula``: the same by the bytes of a turn.
    ``time``: a shorter iteration; ``time_1f1b``: shorter than 1f1b's.
    """

    scheme: str
    link: float | None
    formula: float | None
    time: float | None
    time_1f1b: float | None


def missing_sizes(profile: Profile) -> list[str]:
    """Keys that a profile lacks for crossovers."""
    sizes = ("activation_bytes", "weight_bytes")
    lacking = [key for key in sizes if any(getattr(s, key) is None for s in profile.stages)]
    return (["links"] if profile.links is None else []) + lacking


def crossovers(found: Sequence[Evaluation]) -> list[Crossover]:
    """The crossover of each scheme that sends weights against the best that sends activations."""
    rivals = [row for row in found if not row.streams_weights]
    rivals.sort(key=lambda row: row.step_time)  # most sizes are lost to the first of them
    simple = [row for row in rivals if row.scheme == "1f1b"]
    fewest = min((row.link_bytes for row in rivals), default=0.0)
    cost = cache(cost_at)
    return [
        Crossover(
            row.scheme,
            _sends_less_from(row, fewest),
            _turn_formula(row),
            _wins_from(row, rivals, cost),
            _wins_from(row, simple, cost),
        )
        for row in found
        if row.streams_weights and rivals
    ]


def _sends_less_from(row: Evaluation, fewest: float) -> float | None:
    """The size from which on no link carries more than ``fewest``, which grows with it; else None.

    What the schedule sends grows in so far as it is activations.
    """
    grows = activation_traffic(row.schedule.problem)
    stays = row.traffic - grows
    grows, stays = grows + grows.T, stays + stays.T
    slack = fewest - grows
    if np.any((slack <= 0) & (stays + grows > 0)):
        return None
    sizes = np.divide(stays, slack, out=np.zeros_like(stays), where=slack > 0)
    return float(sizes.max())


# turns for a microbatch of a stage, in each of which two weights and a gradient leave a rank
_TURNS = {"weipipe-naive": 2.0, "weipipe-interleave": 1.0, "wzb1": 1.5, "wzb2": 3.0}


def _turn_formula(row: Evaluation) -> float | None:
    """Two weights and a gradient a turn beside an activation and its gradient a microbatch.

    With 12 H^2 parameters a layer, all of one width, and interleave: G S > 18 H L / P.
    """
    turns, stages = _TURNS.get(row.scheme), row.schedule.problem.profile.stages
    sent = sum(stage.activation_bytes or 0.0 for stage in stages) / len(stages)
    if turns is None or sent <= 0:
        return None
    weights = sum(stage.weight_bytes or 0.0 for stage in stages)
    gradients = sum(
        (stage.weight_bytes or 0.0) if stage.grad_bytes is None else stage.grad_bytes
        for stage in stages
    )
    return turns * (2 * weights + gradients) / len(stages) / (2 * sent)


def _wins_from(row: Evaluation, rivals: Sequence[Evaluation], cost: Cost) -> float | None:
    """The size from which on, at all sizes tried, the schedule is faster than each rival; 0: at
    all. None where it is not at the largest, or where there is no rival.
    """
    if not rivals:
        return None

    def loses(size: float) -> bool:
        own = cost(row, size)
        return any(own >= cost(rival, size) for rival in rivals)

    lost = next((i for i in reversed(range(len(SIZES))) if loses(SIZES[i])), None)
    if lost is None:
        return 0.0
    if SIZES[lost] == SIZES[-1]:
        return None
    _, wins = turning_size(loses, SIZES[lost], SIZES[lost + 1], HALVINGS)
    return wins


def cost_at(row: Evaluation, size: float) -> float:
    """Milliseconds of an iteration with microbatches ``size`` times as large, everything on the
    wires: the step time by the period, which has no barrier, else the makespan until gradients are
    averaged."""
    if row.objective is Objective.PERIOD:
        return row.step_time_at(size)
    alone = play_iterations(posted_between_ops(row.enlarged(size))).timings[0]
    return alone.iteration_time(Objective.MAKESPAN)


def turning_size(
    holds: Callable[[float], bool], there: float, not_there: float, halvings: int
) -> tuple[float, float]:
    """The nearest sizes found, by ``halvings``, at which ``holds`` is true and is not."""
    for _ in range(halvings):
        middle = math.sqrt(there * not_there)
        there, not_there = (middle, not_there) if holds(middle) else (there, middle)
    return there, not_there
