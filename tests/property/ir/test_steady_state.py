"""Replays against plain loops, and against the simulator where nothing contends."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.ir.cost.steady_state.steady_state import step_time
from pipeloom.ir.model.links import Groups, Link, Links, Sharing
from pipeloom.ir.model.ops import Op, OpKind, pack
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.bounds import work_bound
from pipeloom.solver.families import FAMILIES, build_family
from pipeloom.solver.weight_passing.streaming import Streaming, streamed
from tests.support.families import families_of
from tests.support.iterations import play_iterations
from tests.support.plain_steady_state import Playing, Thing

TIMES = st.sampled_from([0.0, 0.125, 1.0, 1.75, 3.0])  # sums are exact, so what is equal is equal
LATENCIES = st.sampled_from([0.125, 0.5, 1.0])
SEEDS = st.integers(0, 2**32)


def sharing(ranks: int) -> st.SearchStrategy[Sharing | Groups]:
    apart = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    if not apart:
        return st.sampled_from(Sharing)
    return st.sampled_from(Sharing) | st.lists(st.lists(st.sampled_from(apart)).map(tuple)).map(
        tuple
    )


@st.composite
def profiles(draw: st.DrawFn, ranks: int, stages: int, *, contended: bool) -> Profile:
    each = [
        StageProfile(
            *draw(st.tuples(TIMES, TIMES, TIMES)),
            activation_bytes=draw(TIMES) * 1e6,
            weight_bytes=draw(TIMES) * 3e6,  # a third of it is exact too
        )
        for _ in range(stages)
    ]
    if not contended:
        return Profile(tuple(each), ranks, t_comm=draw(TIMES), shared_by=1)
    links = Links(Link(draw(LATENCIES), 1.0), shared=draw(sharing(ranks)))
    return Profile(tuple(each), ranks, draw(st.none() | LATENCIES), links, shared_by=1)


@st.composite
def built(draw: st.DrawFn, *, contended: bool) -> Schedule:
    """Of any family."""
    ranks = draw(st.integers(1, 4))
    name = draw(st.sampled_from([name for name in families_of(ranks) if name in FAMILIES]))
    profile = draw(profiles(ranks, ranks, contended=contended))
    return build_family(name, profile, draw(st.integers(1, 5)), memory_limit=math.inf)


def in_any_order(problem: Problem, random: Random) -> list[np.ndarray]:
    """Rank by rank, ops drawn one by one from those whose inputs are made."""
    owner = problem.owner
    rows: list[list[Op]] = [[] for _ in range(problem.ranks)]
    last = problem.stages - 1
    ready = [Op(OpKind.F, 0, j) for j in range(problem.microbatches)]
    while ready:
        op = ready.pop(random.randrange(len(ready)))
        rows[owner[op.stage, op.microbatch]].append(op)
        up = op.kind is OpKind.F
        if up:
            ready.append(
                replace(op, stage=op.stage + 1) if op.stage < last else replace(op, kind=OpKind.BW)
            )
        elif op.stage > 0:
            ready.append(replace(op, stage=op.stage - 1))
    return [pack(row) for row in rows]


@st.composite
def mixed(draw: st.DrawFn, *, contended: bool) -> Schedule:
    """Anything anywhere in any order, with the weights that it takes."""
    ranks, stages, count = (draw(st.integers(1, most)) for most in (3, 3, 4))
    random = Random(draw(SEEDS))
    owners = [[random.randrange(ranks) for _ in range(count)] for _ in range(stages)]
    placement = Placement.of_ops(Passing.MIXED, ranks, np.array(owners))
    profile = draw(profiles(ranks, stages, contended=contended))
    problem = Problem(profile, count, placement, (math.inf,) * ranks)
    schedule = streamed(problem, in_any_order(problem, random), Streaming())
    kept = draw(st.sets(st.sampled_from(range(stages))))  # replicated where several ranks run them
    left = tuple(t for t in schedule.transfers if t.stage not in kept)
    return replace(schedule, transfers=left, timing=None)


def assert_played(schedule: Schedule, iterations: int) -> None:
    found, plain = play_iterations(schedule, iterations), Playing(schedule, iterations)
    for i, timing in enumerate(found.timings):
        for rank, row in enumerate(timing.start):
            expected = [plain.starts[Thing(i, "0 op", (rank, k))] for k in range(len(row))]
            assert row.tolist() == expected
        expected = [
            plain.starts[Thing(i, "3 transfer", (k,))] for k in range(len(timing.transfers))
        ]
        assert timing.transfers[:, 0].tolist() == expected
        ended = [plain.ended(rank, i) for rank in plain.ranks]
        assert found.begin[i + 1].tolist() == ended


@given(built(contended=True) | mixed(contended=True), st.integers(1, 3))
def test_everything_starts_when_plain_loops_say(schedule: Schedule, iterations: int) -> None:
    assert_played(schedule, iterations)


@given(built(contended=False) | mixed(contended=False))
def test_one_iteration_without_contention_is_what_is_simulated(schedule: Schedule) -> None:
    (timing,), simulated = play_iterations(schedule).timings, simulate(schedule)
    assert all(map(np.array_equal, timing.start, simulated.start))
    assert all(map(np.array_equal, timing.end, simulated.end))
    assert np.array_equal(timing.transfers, simulated.transfers)
    assert timing.peak_memory == simulated.peak_memory


@given(built(contended=True) | mixed(contended=True))
def test_the_step_time_is_what_many_iterations_take_each(schedule: Schedule) -> None:
    begin = play_iterations(schedule, 200).begin.max(axis=1)
    assert np.isclose((begin[200] - begin[100]) / 100, step_time(schedule), rtol=0.01)


@given(built(contended=True) | mixed(contended=True) | built(contended=False))
def test_no_step_is_below_its_bound(schedule: Schedule) -> None:
    free = replace(schedule.problem, memory_limit=(math.inf,) * schedule.problem.ranks)
    assert work_bound(free).value <= step_between_ops(schedule) * (1 + 1e-9)
