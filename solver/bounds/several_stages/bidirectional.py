"""Bounds where microbatches go both ways: a rank runs different stages of different microbatches.

What a rank runs of a microbatch is a *visit*: F, B and W of one stage. The B of a visit begins at
least its turn after its F, as the microbatch passes all later stages and comes back, and nothing
else is known of where it is. The first op of a rank is an F, as B and W follow the F of their own
visit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.units import duration

from ...core.bound import Bound
from ...core.tolerances import ROUNDING
from ..rank_model import RankModel, most
from .general_placement import HEAD_TAIL_WORDS, THROUGHPUT_WORDS


def rank_visits(problem: Problem) -> Iterator[tuple[int, RankModel]]:
    """The visits of each rank that has any, as a model that runs every kind once."""
    costs = Costs.of(problem)
    f, b, w = (costs.durations[kind][:, None] for kind in range(3))
    passed = f + b + costs.into_f + costs.into_b
    turn = passed[::-1].cumsum(axis=0)[::-1] - b - costs.into_f  # the sums of each row and below
    columns = {"f": f, "b": b, "w": w, "m_b": costs.m_b[:, None], "m_w": costs.m_w[:, None]}
    for rank, limit in enumerate((costs.limit * (1 + ROUNDING)).tolist()):
        here = costs.owner == rank
        if here.any():
            arrays = {name: np.broadcast_to(x, turn.shape)[here] for name, x in columns.items()}
            yield rank, RankModel(**arrays, turn=turn[here], limit=limit, count=1)


def visits_head_tail(problem: Problem) -> Bound:
    """Idle time of a rank before its first B and after its last F.

    *First.* Before its first B a rank has run F's alone, each of which still holds its M_B
    (:meth:`.RankModel.forwards`). That B begins no earlier than the least turn after the rank's
    start: its own F began no earlier than the rank did.

    *Last.* Once the last F has begun the rank holds its M_B, and beside it what is left to be run:
    M_B of each visit whose B has not begun, M_W of each whose W has not. Until the B of that last F
    the rank runs at most that F, and the B's and W's that fit into the rest of the limit.

    Both are apart, and add up, where the M_B of all visits together exceed the limit: then some F
    begins after a B has ended.
    """
    idle = [(model.work + _idle(model), rank, model) for rank, model in rank_visits(problem)]
    value, rank, model = max(idle, key=lambda found: found[0])

    def numbers() -> list[str]:
        return [
            f"rank {rank} computes for {duration(model.work)} and idles at least "
            f"{duration(value - model.work)} before its first B and after its last F"
        ]

    return Bound(value, "head-tail", HEAD_TAIL_WORDS, rank, numbers)


def _idle(model: RankModel) -> float:
    first = max(0.0, float(model.turn.min()) - model.forwards())
    time = np.concatenate([model.b + model.w, model.w])
    size = np.concatenate([model.m_b, model.m_w])
    kinds = np.unique(np.stack([model.turn - model.f, model.m_b], axis=1), axis=0)
    last: float = min(
        max(0.0, turn - most(time, size, model.limit - held, 1)) for turn, held in kinds.tolist()
    )
    apart = float(model.m_b.sum()) > model.limit
    return first + last if apart else max(first, last)


def visits_throughput(problem: Problem) -> Bound:
    """The memory that visits hold, times their time, within the limit times the span of a rank."""
    found = [
        (model.held / model.limit, rank)
        for rank, model in rank_visits(problem)
        if 0 < model.limit < np.inf
    ]
    value, rank = max(found, default=(0.0, None))
    return Bound(value, "throughput", THROUGHPUT_WORDS, rank)
