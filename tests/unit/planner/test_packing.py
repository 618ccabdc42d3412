"""``pipeloom.pack``: sequences, microbatches and their schedules; ``refit``: costs of sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pipeloom
from pipeloom import Packing, Profile, Schedule, StageProfile
from tests.conformance.messages import files
from tests.support.command_line import profile_document
from tests.support.sequences import packed_profile

LENGTHS: list[int] = files.lengths()["lengths"]
OPS = ("t_f", "t_b", "t_w")


def packed(lengths: list[int] = LENGTHS, microbatches: int = 4, **options: Any) -> Packing:
    document, options = files.lengths(lengths=lengths), {"work_limit": 0.5} | options
    return pipeloom.pack(document, profile_document(), microbatches, **options)


def tokens(found: Packing) -> list[list[int]]:
    return [[sum(found.lengths[i] for i in each) for each in part] for part in found.replicas]


def test_a_packing_has_each_sequence_once_and_a_schedule_of_these_microbatches() -> None:
    found = packed(data_parallel=2, microbatches=2, max_tokens=1000)
    sequences = [i for part in found.replicas for each in part for i in each]
    assert sorted(sequences) == list(range(len(LENGTHS)))
    assert max(map(max, tokens(found))) <= 1000
    for part, counts, schedule in zip(found.replicas, tokens(found), found.schedules, strict=True):
        stage = schedule.problem.profile.stages[0]
        for j, (each, count) in enumerate(zip(part, counts, strict=True)):
            square = sum(LENGTHS[i] ** 2 for i in each) / 1000**2
            assert stage.at(j).t_f == pytest.approx(0.8 * count / 1000 + 0.2 * square)
            assert (stage.at(j).t_w, stage.at(j).m_b) == pytest.approx((count / 1000,) * 2)
        assert pipeloom.verify(schedule).ok
    costs = [one.known_timing.cost(one.problem.objective) for one in found.schedules]
    assert found.lower_bound <= found.cost == max(costs)
    assert "10 sequences of 3400 tokens in 4 microbatches of 2 replicas" in str(found)


def test_more_work_packs_better_and_the_same_work_alike() -> None:
    lengths = np.random.default_rng(1).integers(1, 1000, 24).tolist()
    little, much, again = (
        packed(lengths, 4, data_parallel=2, work_limit=work) for work in (0.01, 0.4, 0.4)
    )
    assert much.cost < little.cost
    assert (much.replicas, much.cost) == (again.replicas, again.cost)
    alike = packed([500] * 6, 3)
    assert [len(each) for each in alike.replicas[0]] == [2, 2, 2]


def test_memory_limits_tokens_and_an_earlier_schedule_is_begun_with() -> None:
    found = packed(memory_limit=1.0)
    assert max(map(max, tokens(found))) <= 1000
    assert max(found.schedules[0].known_timing.peak_memory) <= 1.0 + 1e-9
    first = packed(memory_limit=2.0)
    again = packed(memory_limit=2.0, start=first.schedules[0], work_limit=0.01)
    assert again.cost <= 1.1 * first.cost
    profile = pipeloom.dump_profile(first.schedules[0].problem.profile)
    answer = pipeloom.optimize(profile, memory_limit=2.0, start=first.schedules[0], work_limit=1e-6)
    assert answer.cost <= first.cost * (1 + 1e-9)


LATE = files.lengths(lengths=[5, 30, 12, 22, 9, 17, 28, 3], reference_length=32, attention=0.1)
TIMES = {"t_f": [2.0, 3.0], "t_b": [2.5, 4.0], "t_w": [1.5, 1.0]}
SHARES = {"t_f": [0.3, 0.0], "t_b": [0.5, 0.2], "t_w": [0.0, 1.0]}
GUESS = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 2, 2, 0.1, micro_batch=2)
TRUTH = replace(
    GUESS, stages=tuple(StageProfile(*row, 1.0, 0.5) for row in zip(*TIMES.values(), strict=True))
)


def step(seed: int, *, late: float = 0.0, family: str = "zb-h1") -> tuple[Packing, Schedule]:
    """A packing, and its step with the true costs of sequences; one op is longer by ``late``."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 33, 12).tolist()
    rows = [row.tolist() for row in np.array_split(rng.permutation(12), [2, 3, 7])]
    profile = packed_profile(TRUTH, LATE | {"lengths": lengths, "attention": SHARES}, rows)
    found = pipeloom.build_family(family, profile, 4)
    ends = [end.copy() for end in found.known_timing.end]
    ends[0][0] += late
    trace = replace(found, timing=replace(found.known_timing, end=tuple(ends)))
    return Packing(tuple(lengths), (rows,), (found,), 0.0), trace


def assert_costs(refitted: tuple[Profile, dict[str, Any]], off: float) -> None:
    profile, lengths = refitted
    for key in OPS:
        times = [getattr(stage, key) for stage in profile.stages]
        assert times == pytest.approx(TIMES[key], rel=off)
        assert lengths["attention"][key] == pytest.approx(SHARES[key], abs=off)


def test_costs_are_found_though_one_step_was_disturbed() -> None:
    """Also if a backward ran as one op, whose time is divided as before."""
    steps = [step(seed, late=500.0 if seed == 3 else 0.0) for seed in range(4)]
    profile, lengths = pipeloom.refit(GUESS, LATE, steps)
    assert_costs((profile, lengths), 0.03)
    assert {**lengths, "attention": 0.1} == LATE
    whole = [step(seed, family="1f1b") for seed in range(3)]
    assert_costs(pipeloom.refit(TRUTH, LATE | {"attention": SHARES}, whole), 0.01)


def test_where_lengths_are_all_alike_the_former_share_is_kept() -> None:
    packing, trace = step(0)
    alike = replace(packing, lengths=(8,) * 12, replicas=([[0, 1, 2]] * 4,))
    profile, lengths = pipeloom.refit(GUESS, LATE, [(alike, trace)])
    for key, share in ("t_f", 0.1), ("t_b", 0.2 / 1.1), ("t_w", 0.0):
        assert lengths["attention"][key] == pytest.approx([share] * 2, abs=0.01)
        assert getattr(profile.stages[0], key) != 1.0
