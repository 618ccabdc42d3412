"""Schedules from the text of each rank's ops."""

from __future__ import annotations

import numpy as np

from pipeloom.ir import Passing, Placement, Problem, Profile, Schedule, StageProfile, parse_order

UNIT = StageProfile(1.0, 1.0, 1.0)


def by_hand(
    *rows: str,
    profile: Profile | None = None,
    limit: float | None = None,
    passing: Passing = Passing.ACTIVATIONS,
) -> Schedule:
    """An untimed schedule; ``rows`` has the text of the ops of each rank.

    Stages and microbatches are placed as in the ops. By default, each op takes 1 ms, messages take
    no time, and memory is not limited; ``profile`` and ``limit`` change this.
    """
    order = [parse_order(row) for row in rows]
    ops = [op for row in order for op in row]
    stages, microbatches = (
        1 + max(getattr(op, key) for op in ops) for key in ("stage", "microbatch")
    )
    profile = profile or Profile((UNIT,) * stages, len(rows), shared_by=1)
    owner = np.zeros((profile.num_stages, microbatches), dtype=np.int64)
    for rank, row in enumerate(order):
        for op in row:
            owner[op.stage, op.microbatch] = rank
    placement = Placement.of_ops(passing, len(rows), owner)
    problem = Problem(profile, microbatches, placement, profile.limit_from(limit))
    return Schedule.of(problem, order, "by hand")
