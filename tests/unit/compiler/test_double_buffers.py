"""Receives of weights are posted before the compute that precedes their use."""

from __future__ import annotations

import numpy as np
import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Compute, Instruction, Receive, Send, TensorKind, WaitReceive
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize
from pipeloom.solver.weight_passing.streaming import Route, Streaming, streamed
from tests.support.families import RINGS

RANKS, MICROBATCHES = 4, 12
PROFILE = Profile((StageProfile(1.0, 1.0, 1.0, weight_bytes=1e6),) * RANKS, RANKS, t_comm=0.25)


def computes_between(row: tuple[Instruction, ...]) -> list[int]:
    """For each wait for weights: the ops between the post of the receive and it.

    Weights that are there before the rank's first op, or that come after its last, are left out.
    """
    posted, found, ops = {}, [], 0
    last = max(i for i, item in enumerate(row) if isinstance(item, Compute))
    for item in row[:last]:
        if isinstance(item, Compute):
            ops += 1
        elif isinstance(item, Receive) and item.tensor.kind is TensorKind.WEIGHT:
            posted[item.tensor] = ops
        elif isinstance(item, WaitReceive) and item.tensor in posted and ops > 0:
            found.append(ops - posted[item.tensor])
    return found


def of_interleaves_order(route: Route) -> Schedule:
    plain = build_family("weipipe-interleave", PROFILE, MICROBATCHES)
    return streamed(plain.problem, plain.order, Streaming(buffers=2, route=route))


def optimized(ranks: int) -> Schedule:
    profile = Profile(PROFILE.stages[:1] * ranks, ranks, t_comm=0.25)
    placement = Placement.round_robin(ranks)
    problem = Problem(profile, 3 * ranks, placement, profile.limit_from(None))
    return optimize(problem, work_limit=0.5)


SCHEDULES = {
    "optimized": optimized(12),
    **{name: build_family(name, PROFILE, MICROBATCHES) for name in (*RINGS, "fsdp:1")},
    **{
        f"streamed {route.value}": of_interleaves_order(route)
        for route in (Route.DIRECT, Route.BOTH_WAYS)
    },
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_compute_runs_between_the_post_of_a_receive_and_its_wait(name: str) -> None:
    program = compile_schedule(SCHEDULES[name])
    for row in program.instructions:
        between = computes_between(row)
        assert between
        assert min(between) >= 1


def test_without_prefetch_they_are_posted_when_they_are_needed() -> None:
    program = compile_schedule(build_family("fsdp:0", PROFILE, MICROBATCHES))
    assert all(max(computes_between(row)) == 0 for row in program.instructions)


@pytest.mark.parametrize("name", ["fsdp:0", "fsdp:1"])
def test_what_sets_out_is_sent_before_the_op_during_which_it_is_to_leave(name: str) -> None:
    schedule = build_family(name, PROFILE, MICROBATCHES)
    midway = 0
    for row, start, end in zip(
        compile_schedule(schedule).instructions,
        schedule.known_timing.start,
        schedule.known_timing.end,
        strict=True,
    ):
        ops = 0
        for item in row:
            ops += isinstance(item, Compute)
            if isinstance(item, Send):
                leaves = schedule.known_timing.transfers[item.tensor.index, 0]
                assert ops <= np.sum(end <= leaves)
                midway += bool(np.any((start < leaves) & (leaves < end)))
    assert midway
