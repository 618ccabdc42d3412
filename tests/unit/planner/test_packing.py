"""``pipeloom.pack``: sequences, microbatches and their schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pipeloom
from pipeloom import Packing
from tests.conformance.messages import files
from tests.support.command_line import profile_document

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
