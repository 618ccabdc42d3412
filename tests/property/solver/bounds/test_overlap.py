"""No bound is above the cost of the best of all orders with any pairs, where pairs save time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, IntArray, Op, OpKind, pack
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import lower_bounds
from pipeloom.solver.optimize import optimize
from pipeloom.solver.search.kernels.overlap import time_overlap

TIME = st.sampled_from([0.5, 1.0, 2.0, 3.0])
Variant = tuple[tuple[Op, ...], tuple[bool, ...]]


@st.composite
def problems(draw: st.DrawFn, owners: tuple[int, ...], microbatches: int) -> Problem:
    stages = []
    for _ in owners:
        f, b, w = draw(TIME), draw(TIME), draw(TIME)
        t_fb = max(f, b + w, (f + b + w) * draw(st.sampled_from([0.5, 0.8, 0.9, 1.1])))
        stages.append(StageProfile(f, b, w, 1.0, draw(st.sampled_from([0.0, 0.5])), t_fb=t_fb))
    ranks = max(owners) + 1
    limit = tuple(owners.count(r) * draw(st.sampled_from([1.0, 1.5, 2.0])) for r in range(ranks))
    return Problem(
        Profile(tuple(stages), ranks, draw(st.sampled_from([0.0, 0.3, 2.0]))),
        microbatches,
        Placement.of_stages(owners),
        limit,
        draw(st.sampled_from(Objective)),
    )


def ready(problem: Problem, rank: int, ran: tuple[Op, ...], kind: OpKind) -> Iterator[Op]:
    """What of a kind the rank may run next."""
    own = problem.placement.stages_of(rank)
    for s in own:
        for j in range(problem.microbatches):
            before = {
                OpKind.F: [Op(kind, lower, j) for lower in own if lower < s],
                OpKind.B: [
                    Op(OpKind.F, s, j),
                    *(Op(kind, higher, j) for higher in own if higher > s),
                ],
                OpKind.W: [Op(OpKind.B, s, j)],
            }[kind]
            if kind is OpKind.F and s == 0 and j > 0:
                before.append(Op(kind, s, j - 1))
            if Op(kind, s, j) not in ran and all(op in ran for op in before):
                yield Op(kind, s, j)


def variants(problem: Problem, rank: int) -> Iterator[Variant]:
    """All that a rank can run within its memory; stage 0's F's in the order of microbatches, as all
    are alike."""
    own, possible = problem.placement.stages_of(rank), partial(ready, problem, rank)
    profile, limit = problem.profile.stages, problem.memory_limit[rank] * (1 + 1e-9)

    def grow(ran: tuple[Op, ...], pairs: tuple[bool, ...], held: float) -> Iterator[Variant]:
        if len(ran) == 3 * len(own) * problem.microbatches:
            yield ran, pairs
        for op in possible(ran, OpKind.F):
            more = held + profile[op.stage].m_b
            if more <= limit:
                yield from grow((*ran, op), (*pairs, False), more)
                for b in possible(ran, OpKind.B):
                    w = Op(OpKind.W, b.stage, b.microbatch)
                    left = more - profile[b.stage].m_b
                    yield from grow((*ran, op, b, w), (*pairs, True, False, False), left)
        for op in possible(ran, OpKind.B):
            stage = profile[op.stage]
            yield from grow((*ran, op), (*pairs, False), held - stage.m_b + stage.m_w)
        for op in possible(ran, OpKind.W):
            yield from grow((*ran, op), (*pairs, False), held - profile[op.stage].m_w)

    return grow((), (), 0.0)


@numba.njit(cache=True)
def _least(first, first_pairs, second, second_pairs, offsets, times, makespan):  # type: ignore[no-untyped-def]
    """The least cost of any row of ``first`` with any of ``second``."""
    durations, pair_times, owner, into_f, into_b, scratch = times
    begins, ends = np.empty((2, len(offsets) - 1))
    order = np.empty(offsets[-1], np.int64)
    pairs = np.empty(offsets[-1], np.bool_)
    least = np.inf
    for a in range(len(first)):
        for b in range(len(second)):
            order[: offsets[1]], order[offsets[1] :] = first[a], second[b]
            pairs[: offsets[1]], pairs[offsets[1] :] = first_pairs[a], second_pairs[b]
            if time_overlap(
                order, pairs, offsets, durations, pair_times, owner, into_f, into_b,
                begins, ends, scratch[0], scratch[1],
            ):  # fmt: skip
                span = ends.max() - begins.min() if makespan else (ends - begins).max()
                least = min(least, span)
    return least


def arrays(problem: Problem, rank: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    found = list(variants(problem, rank))
    return np.array([pack(ops) for ops, _ in found]), np.array([pairs for _, pairs in found])


def optimum(problem: Problem) -> float:
    costs, stages = Costs.of(problem), range(problem.stages)
    time = problem.profile.pair_time
    pair_times: FloatArray = np.array([[time(f, b) for b in stages] for f in stages])
    scratch = np.empty((2, problem.stages, problem.microbatches))
    into = costs.into_f, costs.into_b
    times = costs.durations, pair_times, costs.owner, *into, scratch
    counts = [3 * len(problem.placement.stages_of(r)) * problem.microbatches for r in range(2)]
    rows = *arrays(problem, 0), *arrays(problem, 1)
    offsets = np.array([0, counts[0], sum(counts)])
    return float(_least(*rows, offsets, times, problem.objective is Objective.MAKESPAN))


@pytest.mark.parametrize(("owners", "microbatches"), [((0, 1), 2), ((0, 1), 3)])
@settings(max_examples=4)
@given(data=st.data())
def test_bounds_hold(owners: tuple[int, ...], microbatches: int, data: st.DataObject) -> None:
    check(data.draw(problems(owners, microbatches)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owners", "microbatches"), [((0, 1), 2), ((0, 1), 3), ((0, 1, 1), 2), ((0, 1, 0), 2)]
)
@given(data=st.data())
def test_bounds_hold_for_many(
    owners: tuple[int, ...], microbatches: int, data: st.DataObject
) -> None:
    check(data.draw(problems(owners, microbatches)))


def check(problem: Problem) -> None:
    best = optimum(problem)
    bounds = {bound.name: bound.value for bound in lower_bounds(problem)}
    assert {name: value for name, value in bounds.items() if value > best * (1 + 1e-9)} == {}
    found = optimize(problem, work_limit=0.3)
    assert found.known_timing.cost(problem.objective) >= best * (1 - 1e-9)


def test_all_pairs_but_the_first_f_and_the_last_bw_meet_the_bound() -> None:
    """One rank with both stages' time on it, the other as good as idle."""
    slow = StageProfile(2.0, 2.0, 2.0, 1.0, 0.5, t_fb=4.0)
    problem = Problem.linear(Profile((slow, StageProfile(0.0, 0.0, 0.0, t_fb=0.0)), 2, 0.0), 3)
    assert optimum(problem) == next(lower_bounds(problem)).value == 2.0 + 2 * 4.0 + 4.0
