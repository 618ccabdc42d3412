"""Costs of sequences that are fitted to measured steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pipeloom
from pipeloom import InputError, Packing, Problem, Profile, Schedule, StageProfile, build_family
from pipeloom.ir import timed
from pipeloom.planner.packing.costs import OP_TIMES
from tests.support.inner import SequenceCosts, parse_lengths

LENGTHS: dict[str, Any] = {
    "format": "pipeloom.lengths", "version": 1, "lengths": [5, 30, 12, 22, 9, 17, 28, 3],
    "reference_length": 32, "attention": 0.1,
}  # fmt: skip
TIMES = {"t_f": [2.0, 3.0], "t_b": [2.5, 4.0], "t_w": [1.5, 1.0]}
SHARES = {"t_f": [0.3, 0.0], "t_b": [0.5, 0.2], "t_w": [0.0, 1.0]}
GUESS = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 2, 2, 0.1, micro_batch=2)


def truth() -> Profile:
    rows = zip(*TIMES.values(), strict=True)
    return replace(GUESS, stages=tuple(StageProfile(*row, 1.0, 0.5) for row in rows))


def step(seed: int, *, late: float = 0.0, family: str = "zb-h1") -> tuple[Packing, Schedule]:
    """A packing, and its step as sequences really cost; one op is so much longer."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 33, 12).tolist()
    rows = [row.tolist() for row in np.array_split(rng.permutation(12), [2, 3, 7])]
    document = parse_lengths(LENGTHS | {"lengths": lengths, "attention": SHARES}, "lengths")
    costs = SequenceCosts.of(Problem.linear(truth(), 4), document, "lengths")
    problem = costs.problem_of(rows)
    found = timed(build_family(family, problem.profile, 4))
    ends = [end.copy() for end in found.known_timing.end]
    ends[0][0] += late
    trace = replace(found, timing=replace(found.known_timing, end=tuple(ends)))
    return Packing(tuple(lengths), (rows,), (found,), 0.0), trace


def times_of(profile: Profile) -> dict[str, list[float]]:
    return {key: [getattr(stage, key) for stage in profile.stages] for key in OP_TIMES}


def test_costs_are_found_though_one_step_was_disturbed() -> None:
    steps = [step(seed, late=500.0 if seed == 3 else 0.0) for seed in range(4)]
    profile, lengths = pipeloom.refit(GUESS, LENGTHS, steps)
    for key in OP_TIMES:
        assert times_of(profile)[key] == pytest.approx(TIMES[key], rel=0.03)
        assert lengths["attention"][key] == pytest.approx(SHARES[key], abs=0.03)
    assert {**lengths, "attention": 0.1} == LENGTHS
    again = pipeloom.pack(lengths, profile, 3, work_limit=0.1).schedules[0]
    real = pipeloom.pack(LENGTHS | {"attention": SHARES}, truth(), 3, work_limit=0.1).schedules[0]
    assert again.known_timing.makespan == pytest.approx(real.known_timing.makespan, rel=0.02)


def test_times_of_other_ops_follow_those_that_were_measured() -> None:
    stage = replace(GUESS.stages[0], t_bw=1.8, t_fb=2.5, t_r=0.5, m_r=0.1)
    old = replace(GUESS, stages=(stage,) * 2)
    for stage in pipeloom.refit(old, LENGTHS, [step(0, family="1f1b")])[0].stages:
        assert stage.t_r == pytest.approx(stage.t_f / 2)
        assert stage.fused == stage.t_b + stage.t_w
        assert stage.t_fb is None


def test_where_lengths_are_all_alike_the_former_share_is_kept() -> None:
    packing, trace = step(0)
    alike = replace(packing, lengths=(8,) * 12, replicas=([[0, 1, 2]] * 4,))
    profile, lengths = pipeloom.refit(GUESS, LENGTHS, [(alike, trace)])
    for key, share in ("t_f", 0.1), ("t_b", 0.2 / 1.1), ("t_w", 0.0):
        assert lengths["attention"][key] == pytest.approx([share] * 2, abs=0.01)
        assert times_of(profile)[key] != times_of(GUESS)[key]


def test_a_backward_that_ran_whole_is_shared_as_before() -> None:
    split = [step(seed, family="1f1b") for seed in range(3)]
    profile, lengths = pipeloom.refit(truth(), LENGTHS | {"attention": SHARES}, split)
    for key in OP_TIMES:
        assert times_of(profile)[key] == pytest.approx(TIMES[key], rel=0.01)
        assert lengths["attention"][key] == pytest.approx(SHARES[key], abs=0.01)


def test_steps_of_other_stages_or_without_times_are_refused() -> None:
    packing, trace = step(0)
    wanted = r"steps: expected a measured trace of 2 stages and 4 microbatches"
    with pytest.raises(InputError, match=wanted):
        pipeloom.refit(GUESS, LENGTHS, [(packing, replace(trace, timing=None))])
    three = replace(GUESS, stages=GUESS.stages[:1] * 3, ranks=3)
    with pytest.raises(InputError, match="steps: expected a measured trace of 3 stages"):
        pipeloom.refit(three, LENGTHS, [(packing, trace)])
    with pytest.raises(InputError, match=r"steps: expected one trace a replica \(1\), got 2"):
        pipeloom.refit(GUESS, LENGTHS, [(packing, [trace, trace])])
    with pytest.raises(InputError, match="t_f: expected one number for refit"):
        pipeloom.refit(trace.problem.profile, LENGTHS, [(packing, trace)])
