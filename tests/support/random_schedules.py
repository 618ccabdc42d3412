"""Random valid schedules: any order, placement, times and links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from pipeloom.ir import (
    Groups,
    InvalidScheduleError,
    Link,
    Links,
    Objective,
    Op,
    OpKind,
    Passing,
    Placement,
    Problem,
    Profile,
    Schedule,
    Sharing,
    StageProfile,
    Transfer,
    TransferKind,
    timed,
)
from pipeloom.solver import Route, Streaming, build_family, streamed
from tests.support.families import TRAVELLING, fits

TIMES = st.sampled_from([0.0, 0.1, 1.0, 1.7, 3.0])
SHARES = st.sampled_from([0.0, 0.25, 1.0])
SEEDS = st.integers(0, 2**32)
LEVERS: tuple[tuple[OpKind, ...], ...] = ((), (OpKind.R,), (OpKind.O, OpKind.L))
"""Ways to treat activations: kept, recomputed, offloaded."""
UNLIMITED = st.just(math.inf)
PLANS = st.builds(
    Streaming,
    buffers=st.integers(1, 4),
    route=st.sampled_from(Route),
    collections=st.integers(1, 3),
    lead=st.integers(0, 2),
    home=st.none() | st.sampled_from(Route),
    opening=st.integers(0, 2),
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Up to 4 ranks, 6 stages and 5 microbatches; ops may take no time, and ranks may have no
    stage."""
    ranks = draw(st.integers(1, 4))
    owners = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=6))
    microbatches = draw(st.integers(1, 5))
    stages = [StageProfile(*draw(st.tuples(TIMES, TIMES, TIMES))) for _ in owners]
    delays = st.lists(st.lists(TIMES, min_size=ranks, max_size=ranks).map(tuple), min_size=ranks)
    t_comm = draw(TIMES | delays.map(lambda rows: tuple(rows[:ranks])))
    profile = Profile(tuple(stages), ranks, t_comm=t_comm, shared_by=1)
    placement = Placement.of_stages(tuple(owners))
    problem = Problem(profile, microbatches, placement, profile.limit_from(None))
    fused = draw(st.sampled_from([0.0, 0.5, 1.0]))
    return Schedule.of(problem, random_order(problem, fused, Random(draw(SEEDS))), "random")


@st.composite
def lever_schedules(draw: st.DrawFn) -> Schedule:
    """Up to 3 ranks, 5 stages and 4 microbatches, any of which are recomputed or offloaded."""
    ranks = draw(st.integers(1, 3))
    owners = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=5))
    stages = [
        StageProfile(
            *draw(st.tuples(TIMES, TIMES, TIMES)),
            m_b=8.0,
            m_w=8.0 * draw(SHARES),
            t_r=draw(TIMES),
            m_r=8.0 * draw(SHARES),
            m_o=8.0 * draw(SHARES),
            offload_bytes=draw(TIMES),
            t_bw=draw(st.none() | TIMES),
        )
        for _ in owners
    ]
    link = Link(draw(TIMES), 1e-6)
    profile = Profile(tuple(stages), ranks, draw(TIMES), host_link=link, shared_by=1)
    placement = Placement.of_stages(tuple(owners))
    problem = Problem(profile, draw(st.integers(1, 4)), placement, profile.limit_from(None))
    random = Random(draw(SEEDS))
    order = random_order(problem, draw(st.sampled_from([0.0, 0.5])), random)
    return Schedule.of(problem, [with_levers(row, random) for row in order], "random")


def random_order(
    problem: Problem, fused: float, random: Random, forwards: float = 0.0
) -> list[list[Op]]:
    """The ops of each rank, in a random order that respects dependencies.

    ``fused``: probability of BW instead of B and W. ``forwards``: probability of choosing an F if
    one is ready; high values fill memory.
    """
    owner = problem.owner
    order: list[list[Op]] = [[] for _ in range(problem.ranks)]
    ready = [Op(OpKind.F, 0, j) for j in range(problem.microbatches)]
    while ready:
        ahead = forwards and random.random() < forwards
        first = [op for op in ready if op.kind is OpKind.F] if ahead else []
        op = random.choice(first or ready)
        ready.remove(op)
        order[owner[op.stage, op.microbatch]].append(op)
        ready += _enabled(op, problem.stages, fused, random)
    return order


def _enabled(op: Op, stages: int, fused: float, random: Random) -> list[Op]:
    """The ops that can run after ``op``."""
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


def with_levers(
    row: list[Op], random: Random, ways: Sequence[tuple[OpKind, ...]] = LEVERS
) -> list[Op]:
    """``row`` with the ops of a random one of these ways for each F, at random valid positions."""
    for op in [op for op in row if op.kind is OpKind.F]:
        at = row.index(op)
        for kind in random.choice(ways):
            at = random.randint(at + 1, _backward(row, op))
            row.insert(at, Op(kind, op.stage, op.microbatch))
    return row


def _backward(row: list[Op], forward: Op) -> int:
    same = (forward.stage, forward.microbatch)
    kinds = (OpKind.B, OpKind.BW)
    return next(
        i for i, op in enumerate(row) if op.kind in kinds and (op.stage, op.microbatch) == same
    )


# schedules in which weights travel ----------------------------------------------------------------


def sharing(ranks: int) -> st.SearchStrategy[Sharing | Groups]:
    """Any way of sharing wires, including a few random groups."""
    apart = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    group = st.lists(st.sampled_from(apart)).map(tuple) if apart else st.nothing()
    return st.sampled_from(Sharing) | st.lists(group).map(tuple)


@st.composite
def profiles(
    draw: st.DrawFn,
    ranks: int,
    stages: int,
    *,
    times: st.SearchStrategy[float] = TIMES,
    latencies: st.SearchStrategy[float] = TIMES,
    contended: bool | None = None,
    weight: float = 1e6,
    paired: bool = False,
) -> Profile:
    """A profile with any times and sizes, and with links of 1 GB/s if ``contended``; by default,
    with or without.

    ``weight``: factor on random numbers for the bytes of weights and gradients. ``paired``: whether
    pairs may save time.
    """
    each = []
    for _ in range(stages):
        t_f, t_b, t_w, m_b, activation = draw(st.tuples(*[times] * 5))
        stage = StageProfile(t_f, t_b, t_w, m_b, m_b * draw(SHARES), activation * 1e6)
        gradient = draw(st.none() | times.map(lambda size: size * weight))
        sizes = {"weight_bytes": draw(times) * weight, "grad_bytes": gradient}
        each.append(replace(stage, **sizes, t_fb=draw(st.none() | times) if paired else None))
    links = None
    if draw(st.booleans()) if contended is None else contended:
        links = Links(Link(draw(latencies), 1.0), shared=draw(sharing(ranks)))
    rows = st.lists(latencies, min_size=ranks, max_size=ranks).map(tuple)
    apart = st.lists(rows, min_size=ranks, max_size=ranks).map(tuple)
    t_comm = draw(latencies | apart if paired else latencies)
    return Profile(tuple(each), ranks, t_comm, links, shared_by=1)


def unlike(profile: Profile, microbatches: int, seed: int) -> Profile:
    """``profile`` with separate times and sizes for each microbatch."""
    rng = np.random.default_rng(seed)
    alike = (("t_f",), ("t_b",), ("t_w",), ("m_b", "m_w"), ("activation_bytes",))

    def scaled(stage: StageProfile) -> StageProfile:
        for keys in alike:
            stage = stage.scaled(rng.uniform(0.3, 1.7), keys)
        return stage

    each = ([scaled(stage) for _ in range(microbatches)] for stage in profile.stages)
    return replace(profile, stages=tuple(map(StageProfile.of, each)))


@st.composite
def weight_problems(
    draw: st.DrawFn,
    passing: Passing = Passing.WEIGHTS,
    most: tuple[int, int, int] = (4, 5, 7),
    shares: st.SearchStrategy[float] = UNLIMITED,
    **options: Any,
) -> Problem:
    """Problems with at most this number of ranks, stages and microbatches, each of which (or each
    pair) is on any rank.

    ``shares``: the memory limit, as a share of one microbatch's memory on all stages. ``options``:
    for the profile.
    """
    ranks, stages, microbatches = (draw(st.integers(1, number)) for number in most)
    profile = draw(profiles(ranks, stages, **options))
    rows = stages if passing is Passing.MIXED else 1
    owners = st.lists(st.integers(0, ranks - 1), min_size=microbatches, max_size=microbatches)
    owner = np.array([draw(owners) for _ in range(rows)])
    placement = Placement.of_ops(passing, ranks, owner)
    if passing is Passing.WEIGHTS and draw(st.booleans()):
        placement = Placement.round_robin(ranks)
    held = sum(stage.m_b for stage in profile.stages)
    limit = profile.limit_from(None if (share := draw(shares)) == math.inf else share * held)
    return Problem(profile, microbatches, placement, limit, draw(st.sampled_from(Objective)))


@st.composite
def streamed_orders(
    draw: st.DrawFn, problem: Problem, plan: Streaming | None = None, fused: float = 0.5
) -> Schedule:
    """Any order with the transfers that it needs; some stages stay on all ranks that run them."""
    plan = plan or Streaming()
    rows = Schedule.of(problem, random_order(problem, fused, Random(draw(SEEDS))), "random").order
    try:
        schedule = streamed(problem, rows, plan)
    except InvalidScheduleError:  # this route cannot serve the order; direct routes always can
        assert {plan.route, plan.home or plan.route} != {Route.DIRECT} or plan.opening
        assume(False)
        raise
    kept = draw(st.sets(st.sampled_from(range(problem.stages)), max_size=2))
    left = tuple(t for t in schedule.transfers if t.stage not in kept)
    return replace(schedule, transfers=left, timing=None)


@st.composite
def of_families(draw: st.DrawFn) -> Schedule:
    ranks = draw(st.integers(1, 5))
    names = [name for name in (*TRAVELLING, "fsdp:0") if fits(name, ranks)]
    name = draw(st.sampled_from(names))
    stages = draw(st.integers(1, 7)) if name.startswith("fsdp") else ranks
    profile = draw(profiles(ranks, stages))
    return build_family(name, profile, draw(st.integers(1, 11)), memory_limit=math.inf)


def waiting_less(transfer: Transfer, ways: set[str], random: Random, ops: int) -> Transfer:
    """The transfer with fewer waits: weights forwarded on arrival, or a D for which no op waits,
    whose sums are kept until then, or more room."""
    weights = transfer.kind is TransferKind.WEIGHT
    if "early weights" in ways and weights:
        transfer = replace(transfer, after=random.randint(0, transfer.after))
    if "late gradients" in ways and not weights:
        transfer = replace(transfer, before=random.choice([transfer.before, ops]))
    if "more room" in ways:
        transfer = replace(transfer, room=random.randint(0, transfer.room))
    return transfer


@st.composite
def travelling(draw: st.DrawFn) -> Schedule:
    """A schedule in which weights and gradients are sent, with or without activations.

    It is a family's, or any order with the transfers that it needs, some of which wait for less.
    """
    anything = weight_problems(Passing.WEIGHTS) | weight_problems(Passing.MIXED)
    orders = st.tuples(anything, PLANS).flatmap(lambda given: streamed_orders(*given))
    schedule = draw(of_families() | orders)
    ways = draw(st.sets(st.sampled_from(["early weights", "late gradients", "more room"])))
    random, ops = Random(draw(SEEDS)), [len(row) for row in schedule.order]
    changed = (waiting_less(t, ways, random, ops[t.target]) for t in schedule.transfers)
    return timed(replace(schedule, transfers=tuple(changed)))
