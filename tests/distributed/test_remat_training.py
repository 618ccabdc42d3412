"""At limits that no schedule keeps without recomputation or offload: what is planned keeps them.
That it trains as one process does: `tests/parity`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from pipeloom import Pipeline, Profile, StageProfile, build_family, dump_schedule
from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    Link,
    OpKind,
    Placement,
    Problem,
    Program,
    Schedule,
    verify_schedule,
)
from pipeloom.runtime import measure_profile
from pipeloom.solver import solve
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer, Untied, stepped, trained

RANKS, COUNTS = 2, (2, 4, 7)
STAGES, MICROBATCHES = 2 * RANKS, 4


SOURCE = Untied()


@cache
def planned(lever: str) -> Schedule:
    """A schedule at a limit that needs a lever: less than M_B of a rank's two stages, in bytes."""
    once: dict[str, Any] = {"repeats": 1, "warmup": 0, "together": False, "recompute": True}
    sizes = measure_profile(SOURCE, stages=STAGES, ranks=RANKS, **once)
    times = {"t_f": 2.0, "t_b": 3.0, "t_w": 2.0, "t_bw": None, "t_r": 2.0}
    less = {"recompute": {"m_o": None}, "offload": {"t_r": None, "m_r": None}, "both": {}}
    stages = tuple(
        replace(stage, **times | {"m_o": stage.m_r} | less[lever])  # type: ignore[arg-type]
        for stage in sizes.profile.stages
    )
    profile = Profile(stages, RANKS, t_comm=0.1, host_link=Link(0.0, 0.05))
    limit = max(stage.m_b for stage in stages) + 2 * max(s.m_r or 0.0 for s in sizes.profile.stages)
    problem = Problem(profile, MICROBATCHES, Placement.v(RANKS), (limit,) * RANKS)
    return solve(problem, work_limit=0.2, seed=1)


@pytest.mark.parametrize("lever", ["recompute", "offload", "both"])
def test_what_is_recomputed_or_offloaded_is_held_within_the_limit(lever: str) -> None:
    plan = planned(lever)
    limit = plan.problem.memory_limit[0]
    assert verify_schedule(dump_schedule(plan)) == []
    assert limit < 2 * min(stage.m_b for stage in plan.problem.profile.stages)
    assert {op.kind for r in range(RANKS) for op in plan.ops(r)} & {OpKind.R, OpKind.L}
    peaks = on_threads(_held, RANKS, (compile_schedule(plan),)).values()
    assert all(0 < peak <= limit for peak in peaks), (peaks, limit)


def _held(program: Program, rows: int = SOURCE.rows) -> int:
    return trained(program, replace(SOURCE, rows=rows), train=False).peak_memory


def test_weights_that_go_round_leave_activations_of_one_microbatch_at_a_time() -> None:
    """The first BW of a microbatch comes before the first F of the next one but one."""
    stage = StageProfile(2.0, 2.0, 1.5, activation_bytes=1e3, weight_bytes=1e6)
    profile = Profile((stage,) * RANKS, RANKS, t_comm=0.1)
    plans = [build_family("weipipe-interleave", profile, count) for count in COUNTS]
    programs = [compile_schedule(plan, tied=[(0, RANKS - 1)]) for plan in plans]
    rows = on_threads(_peaks, RANKS, (programs,), timeout=120).values()
    first, *others = (max(each) for each in zip(*rows, strict=True))
    assert max(others) < 1.05 * first


def _peaks(programs: Sequence[Program]) -> list[int]:
    source, found = TinyTransformer(), []
    for program in programs:
        pipeline = Pipeline.from_source(program, source, transport=own())
        stepped(pipeline, source)
        for stage in {*pipeline.store.stages} - {*pipeline.modules}:
            away = pipeline.store.module(stage).parameters()
            assert all(p.untyped_storage().nbytes() == 0 for p in away), "weights of another rank"
        pipeline.close()
        found.append(pipeline.peak_memory)
    return found
