"""Problems without remat in which whole stages are recomputed or offloaded.

If R runs right before its B, both together are a longer B. The part of M_B that is not kept from F
on is the *remainder*. It is held only while this one op runs, so a rank needs memory for one
remainder at a time::

    reduced     F .......... B      W       M_B: what waits for B; limit less the largest remainder
    expanded    F ....... R  B      W

Offload is similar, but its copies run at the same time as ops: with memory for one or more
remainders, an F can run while the activations of another microbatch are being offloaded. Which
microbatches are recomputed or offloaded is decided when a schedule is made to fit in memory
(:mod:`.repair`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import OFFLOADED, RECOMPUTED, STAYS
from pipeloom.ir.model.ops import KIND_MASK, STAGE_MASK, STAGE_SHIFT, OpKind, split_backwards
from pipeloom.ir.model.problem import Problem

from ..core.options import Order
from ..core.relaxations import offloadable, plain, recomputable


def reductions(problem: Problem, every: bool) -> Iterator[Problem]:
    """Yield problems without remat in which some stages are as if recomputed or offloaded.

    These are all stages, or only the first ones, as far as they allow it. They have less M_B and,
    if they are recomputed, longer B's; memory limits are reduced by the memory for what R or L
    restores. Problems without enough memory are left out. ``every``: yield only the problem in
    which all recomputable stages are recomputed.
    """
    again, out = recomputable(problem) * RECOMPUTED, offloadable(problem) * OFFLOADED
    firsts = {-(-problem.stages * k // 4) for k in range(1, 5)} if not every else {problem.stages}
    seen = set()
    for first in sorted(firsts, reverse=True):
        for chosen in (again,) if every else (again, out):
            choice = tuple(np.where(np.arange(problem.stages) < first, chosen, STAYS).tolist())
            if choice in seen or not (any(choice) or every):
                continue
            seen.add(choice)
            for rests in (2, 1) if OFFLOADED in choice else (1,):
                if (found := _reduced(problem, choice, rests)) is not None:
                    yield found


def _reduced(problem: Problem, choice: Sequence[int], rests: int) -> Problem | None:
    """Return the problem with the given choice for each stage, or None if memory is too small.

    ``choice``: STAYS, RECOMPUTED or OFFLOADED, by stage. ``rests``: the number of remainders (the
    part of M_B that is not kept) of an offloaded stage for which memory is reserved.
    """
    costs, bare = Costs.of(problem), plain(problem)
    stages, room = list(bare.profile.stages), np.zeros(problem.stages)
    for s, chosen in enumerate(choice):
        if chosen == STAYS:
            continue
        kept, stage = float(costs.kept[chosen, s]), stages[s]
        room[s] = (rests if chosen == OFFLOADED else 1) * float(costs.m_b[s] - kept)
        again = float(costs.durations[OpKind.R, s]) if chosen == RECOMPUTED else 0.0
        stages[s] = replace(stage, t_b=stage.t_b + again, m_b=kept)
        if _joined(costs, s, chosen):
            stages[s] = replace(stages[s], t_b=stage.t_b + again + stage.t_w, t_w=0.0, m_w=0.0)
    own = map(problem.placement.stages_of, range(problem.ranks))
    limit = problem.memory_limit - np.array([max(room[list(at)], default=0.0) for at in own])
    if (limit < 0).any():
        return None
    profile = replace(bare.profile, stages=tuple(stages))
    return replace(bare, profile=profile, memory_limit=tuple(limit.tolist()))


def _joined(costs: Costs, stage: int, choice: int) -> bool:
    """Return whether each W must directly follow its B on a stage with this choice.

    It must if M_W exceeds the memory that the choice keeps from F until B. ``choice``: STAYS,
    RECOMPUTED or OFFLOADED.
    """
    return choice != STAYS and bool(costs.m_w[stage] > costs.kept[choice, stage])


def recomputed(problem: Problem, rows: Order) -> Iterator[Order]:
    """Yield one order: ``rows`` with an R before each B of a recomputable stage.

    Where :func:`_joined` demands it, each W is moved right behind its B. ``rows``: one array of
    packed ops per rank.
    """
    costs, again = Costs.of(problem), recomputable(problem)
    joined = [_joined(costs, s, int(choice)) for s, choice in enumerate(again * RECOMPUTED)]
    result = []
    for row in map(split_backwards, rows):
        ops = []
        for op in row.tolist():
            kind, stage = op & KIND_MASK, op >> STAGE_SHIFT & STAGE_MASK
            at_once = joined[stage]
            if kind == OpKind.B and again[stage]:
                ops.append(op - OpKind.B + OpKind.R)
            if not (kind == OpKind.W and at_once):
                ops.append(op)
            if kind == OpKind.B and at_once:
                ops.append(op - OpKind.B + OpKind.W)
        result.append(np.array(ops, dtype=np.int64))
    yield tuple(result)
