"""Steps ahead of the norm, taken back where it says otherwise, are the steps that wait for it, bit
for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from examples.gpt import GPT, small
from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.links import Link
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.pipeline.model_source import ModelSource
from pipeloom.solver.families import build_family
from tests.distributed.cases.remat import given_up
from tests.distributed.cases.validation import (
    Case,
    Event,
    Job,
    NoisyTransformer,
    Run,
    compare,
    run_ahead,
)

RANKS, MICROBATCHES, STEPS = 4, 4, 12
LARGE = 1e5
# an Inf and NaN, a norm above the limit: on the first rank, one between, the last; two in a row
EVENTS: tuple[tuple[int, Event], ...] = (
    (1, (3, LARGE)),
    (2, (1, math.nan)),
    (4, (0, LARGE)),
    (5, (3, math.inf)),
    (7, (0, math.inf)),
    (9, (2, LARGE)),
    (11, (2, math.inf)),
)
SCALE = 1024.0
CASES = [
    Case("1f1b", "adamw", events=EVENTS),
    Case("zb-h1", "sgd", events=EVENTS),
    Case("zb-v", "odd", events=EVENTS),
    Case("interleaved-1f1b:2", "adam", loss_scale=SCALE, events=EVENTS),
    Case("chimera", "plain sgd", events=EVENTS),
    Case("gpipe", "adamw", clip=None, loss_scale=SCALE, events=EVENTS),
    Case("1f1b R", "adamw", events=EVENTS),
    Case("1f1b O", "plain sgd", events=EVENTS),
    Case("zb-h2", "adamw", loss_scale=SCALE, param_dtype=torch.bfloat16, events=EVENTS),
]


def program(plan: str, microbatches: int, *, ahead: bool, tied: bool) -> Program:
    stages = (StageProfile(2.0, 2.0, 1.5, t_r=2.0, m_r=0.1, m_o=0.1),) * RANKS
    profile = Profile(stages, RANKS, t_comm=0.1, host_link=Link(0.0, 0.05))
    family, _, lever = plan.partition(" ")
    schedule = given_up(build_family(family, profile, microbatches), lever)
    groups = [[0, schedule.problem.stages - 1]] if tied else []
    return compile_schedule(schedule, tied=groups, post_validation=ahead)


def job(case: Case, source: ModelSource, steps: int, microbatches: int, *, tied: bool) -> Job:
    ahead, waiting = (
        program(case.plan, microbatches, ahead=relays, tied=tied) for relays in (True, False)
    )
    return Job(case, ahead, waiting, source, steps)


def runs(jobs: Sequence[Job]) -> dict[Case, list[tuple[Run, Run]]]:
    """Of each case, rank by rank: ahead of the norm, and after it."""
    found = launch(compare, RANKS, (jobs,), timeout=3600, message_timeout=60)
    return {job.case: [found[rank][i] for rank in range(RANKS)] for i, job in enumerate(jobs)}


def demo(source: GPT, steps: int, microbatches: int) -> Job:
    """NaN, Inf and norms above the limit on each of the ranks, steps as they are in between."""
    factors = (math.inf, LARGE, math.nan, LARGE)
    events = tuple(
        (step, (i % RANKS, factors[(i // RANKS + i) % 4]))
        for i, step in enumerate(range(2, steps, max(1, steps // 16)))
    )
    case = Case("zb-h1", "adamw", clip=5.0, loss_scale=SCALE, events=events)
    return job(case, source, steps, microbatches, tied=False)


DEMO = demo(small(), 20, 4)


@cache
def results() -> dict[Case, list[tuple[Run, Run]]]:
    noisy = NoisyTransformer(torch.float32)
    return runs([*(job(case, noisy, STEPS, MICROBATCHES, tied=True) for case in CASES), DEMO])


def check_equal(rows: Sequence[tuple[Run, Run]]) -> None:
    for ahead, waiting in rows:
        assert ahead.hashes == waiting.hashes
        assert repr(ahead.losses) == repr(waiting.losses)
        assert repr(ahead.norm) == repr(waiting.norm)
        assert ahead.loss_scale == waiting.loss_scale
        assert waiting.undone == 0
        assert ahead.held == waiting.held == 0


@pytest.mark.parametrize("case", [*CASES, DEMO.case], ids=str)
def test_both_ways_end_with_the_same_bits(case: Case) -> None:
    rows = results()[case]
    check_equal(rows)
    undone = sum(ahead.undone > 0 for ahead, _ in rows)
    # of two ranks with one replica the second knows what the first does
    assert undone == RANKS - 1 if case.plan != "chimera" else undone > 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_not_finite_changes_nothing_and_lowers_the_scale(case: Case) -> None:
    ahead, _ = results()[case][0]
    assert ahead.norm is not None
    assert not math.isfinite(ahead.norm), "the last step's"
    if case.loss_scale is not None:
        assert ahead.loss_scale is not None
        bad = sum(not math.isfinite(f) for _, (_, f) in EVENTS)
        grown = ahead.loss_scale.scale / (SCALE / 2**bad)
        assert grown >= 1
        assert math.log2(grown).is_integer()


def test_the_first_rank_goes_on_before_the_last_one_has_a_norm(tmp_path: Path) -> None:
    plan = program("zb-h1", MICROBATCHES, ahead=True, tied=False)
    finished = launch(run_ahead, RANKS, (plan, str(tmp_path / "mark")), timeout=120)
    assert all(finished.values())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source", [small(), GPT(context=32, microbatch=1)], ids=["small", "whole"])
def test_the_demo_model_for_a_hundred_steps(source: GPT) -> None:
    """The whole one has the demo's ten million parameters, on shorter sequences."""
    chosen = demo(source, 100, 4)
    rows = runs([chosen])[chosen.case]
    check_equal(rows)
    assert all(ahead.undone for ahead, _ in rows[:-1])
