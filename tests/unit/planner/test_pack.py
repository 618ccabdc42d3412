"""``pipeloom.pack``: sequences into microbatches, their schedules, and bad input."""

from __future__ import annotations

from typing import Any

import pytest

import pipeloom as library
from tests.support.command_line import profile_document
from tests.support.inner import Searched, Searching

LENGTHS = [900, 100, 400, 30, 250, 700, 60, 500, 120, 340]


def lengths_document(**changes: Any) -> dict[str, Any]:
    document = {
        "format": "pipeloom.lengths",
        "version": 1,
        "lengths": LENGTHS,
        "reference_length": 1000,
        "attention": 0.2,
    } | changes
    return {key: value for key, value in document.items() if value is not None}


def packed(*, profile: dict[str, Any] | None = None, **options: Any) -> library.Packing:
    options = {"microbatches": 4, "work_limit": 2.0} | options
    return library.pack(lengths_document(), profile or profile_document(), **options)


def test_a_packing_has_each_sequence_once_and_a_schedule_of_these_microbatches() -> None:
    found = packed(data_parallel=2, microbatches=2, max_tokens=1000)
    sequences = [i for part in found.replicas for each in part for i in each]
    assert sorted(sequences) == list(range(len(LENGTHS)))
    costs = []
    for part, schedule in zip(found.replicas, found.schedules, strict=True):
        tokens = [sum(LENGTHS[i] for i in each) for each in part]
        assert max(tokens) <= 1000
        stage = schedule.problem.profile.stages[0]
        for j, each in enumerate(part):
            square = sum(LENGTHS[i] ** 2 for i in each) / 1000**2
            assert stage.at(j).t_f == pytest.approx(0.8 * tokens[j] / 1000 + 0.2 * square)
            assert stage.at(j).t_w == pytest.approx(tokens[j] / 1000)
            assert stage.at(j).m_b == pytest.approx(tokens[j] / 1000)
        assert library.verify(schedule).violations == []
        costs.append(schedule.known_timing.cost(schedule.problem.objective))
    assert found.lower_bound <= found.cost == max(costs)
    assert "10 sequences of 3400 tokens in 4 microbatches of 2 replicas" in str(found)


def test_the_same_seed_and_work_give_the_same_packing() -> None:
    first, again = (packed(seed=3) for _ in range(2))
    assert first.replicas == again.replicas
    assert first.cost == again.cost


def test_sequences_of_one_length_are_spread_evenly() -> None:
    found = library.pack(
        lengths_document(lengths=[500] * 6), profile_document(), microbatches=3, work_limit=1.0
    )
    assert [len(each) for each in found.replicas[0]] == [2, 2, 2]
    assert library.verify(found.schedules[0]).violations == []


def test_memory_limits_the_tokens_of_a_microbatch() -> None:
    found = packed(memory_limit=1.0)
    assert max(sum(LENGTHS[i] for i in each) for each in found.replicas[0]) <= 1000
    assert found.schedules[0].problem.memory_limit == (1.0, 1.0)
    assert max(found.schedules[0].known_timing.peak_memory) <= 1.0 + 1e-9


def test_an_earlier_schedule_is_begun_with() -> None:
    first = packed(memory_limit=2.0)
    again = packed(memory_limit=2.0, start=first.schedules[0], work_limit=0.01)
    assert again.cost <= 1.1 * first.cost
    profile = library.dump_profile(first.schedules[0].problem.profile)
    answer = library.optimize(profile, memory_limit=2.0, start=first.schedules[0], work_limit=1e-6)
    assert answer.cost <= first.cost * (1 + 1e-9)


def test_nothing_is_told_of_searches_that_begin_once_it_is_stopped() -> None:
    told: list[object] = []
    found = library.pack(
        *(lengths_document(), profile_document(), 4), progress=told.append, should_stop=lambda: True
    )
    assert len(found.schedules) == 1
    assert found.lower_bound <= found.cost
    assert [event for event in told if isinstance(event, Searching | Searched)] == []
