"""Random valid schedules: every order that can run, on any placement and any times."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from pipeloom.ir import Op, OpKind, Placement, Problem, Profile, Schedule, StageProfile

_TIMES = st.sampled_from([0.0, 0.1, 1.0, 1.7, 3.0])


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Up to 4 ranks, 6 stages and 5 microbatches; ops may take no time, ranks may have no stage."""
    ranks = draw(st.integers(1, 4))
    owners = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=6))
    microbatches = draw(st.integers(1, 5))
    stages = [StageProfile(*draw(st.tuples(_TIMES, _TIMES, _TIMES))) for _ in owners]
    delays = st.lists(st.lists(_TIMES, min_size=ranks, max_size=ranks).map(tuple), min_size=ranks)
    t_comm = draw(_TIMES | delays.map(lambda rows: tuple(rows[:ranks])))
    profile = Profile(tuple(stages), ranks, t_comm=t_comm, shared_by=1)
    placement = Placement.of_stages(tuple(owners))
    problem = Problem(profile, microbatches, placement, profile.limit_from(None))
    fused = draw(st.sampled_from([0.0, 0.5, 1.0]))
    order = random_order(problem, fused, Random(draw(st.integers(0, 2**32))))
    return Schedule.of(problem, order, "random")


def random_order(problem: Problem, fused: float, random: Random) -> list[list[Op]]:
    """Ops in any order in which each comes after what it needs, dealt out to their ranks.

    ``fused``: how likely B and W are one op.
    """
    owner = problem.owner
    order: list[list[Op]] = [[] for _ in range(problem.ranks)]
    ready = [Op(OpKind.F, 0, j) for j in range(problem.microbatches)]
    while ready:
        op = ready.pop(random.randrange(len(ready)))
        order[owner[op.stage, op.microbatch]].append(op)
        ready += _enabled(op, problem.stages, fused, random)
    return order


def _enabled(op: Op, stages: int, fused: float, random: Random) -> list[Op]:
    """What can run once ``op`` has."""
    if op.kind is OpKind.W:
        return []
    if op.kind is OpKind.F and op.stage + 1 < stages:
        return [Op(OpKind.F, op.stage + 1, op.microbatch)]
    after = [Op(OpKind.W, op.stage, op.microbatch)] if op.kind is OpKind.B else []
    below = op.stage if op.kind is OpKind.F else op.stage - 1
    if below >= 0:
        kind = OpKind.BW if random.random() < fused else OpKind.B
        after.append(Op(kind, below, op.microbatch))
    return after
