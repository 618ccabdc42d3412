"""``pipeloom.pack``: sequences into microbatches, their schedules, and bad input."""

from __future__ import annotations

import time
from typing import Any

import pytest

import pipeloom as library
from pipeloom.ir.formats import parse_profile
from pipeloom.planner.solving.progress import Searched, Searching
from tests.support.command_line import profile_document

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


def test_what_stops_the_search_stops_it_in_packings_too() -> None:
    began = time.process_time()
    found = packed(work_limit=None, time_limit=1000.0, should_stop=lambda: True)
    assert found.lower_bound <= found.cost
    assert time.process_time() - began < 40.0


def test_memory_limits_the_tokens_of_a_microbatch() -> None:
    found = packed(memory_limit=1.0)
    assert max(sum(LENGTHS[i] for i in each) for each in found.replicas[0]) <= 1000
    assert found.schedules[0].problem.memory_limit == (1.0, 1.0)
    assert max(found.schedules[0].known_timing.peak_memory) <= 1.0 + 1e-9
    with pytest.raises(library.InfeasibleError, match="4 microbatches of at most 899 tokens"):
        packed(memory_limit=0.8995)


def test_an_earlier_schedule_is_begun_with() -> None:
    first = packed(memory_limit=2.0)
    again = packed(memory_limit=2.0, start=first.schedules[0], work_limit=0.01)
    assert again.cost <= 1.1 * first.cost
    profile = library.dump_profile(first.schedules[0].problem.profile)
    answer = library.optimize(profile, memory_limit=2.0, start=first.schedules[0], work_limit=1e-6)
    assert answer.cost <= first.cost * (1 + 1e-9)


SHARES = "expected a number from 0 to 1, or one a stage (2), got"
# what is said of a change to the lengths, and of more options
BAD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "microbatches: expected at most 10 in all, got 12": ({}, {"data_parallel": 3}),
    "data_parallel: expected a whole number >= 1, got -1": ({}, {"data_parallel": -1}),
    "data_parallel: expected a whole number >= 1, got 0": ({}, {"data_parallel": 0}),
    "max_tokens: expected a whole number >= 1, got 0": ({}, {"max_tokens": 0}),
    "max_tokens: expected a whole number >= 1, got 0.5": ({}, {"max_tokens": 0.5}),
    "lengths: lengths: expected at least one entry, got []": ({"lengths": []}, {}),
    "lengths: lengths[1]: expected a whole number >= 1 and <= 1000000000, got 0": (
        {"lengths": [5, 0, 3, 2]},
        {},
    ),
    "lengths: model: unknown key; known: format, version, lengths, reference_length, attention": (
        {"model": "llama-3-8b"},
        {},
    ),
    "lengths: attention: missing; expected a value": ({"attention": None}, {}),
    f"lengths: attention: {SHARES} 1.5": ({"attention": 1.5}, {}),
    f'lengths: attention: {SHARES} "0.3"': ({"attention": "0.3"}, {}),
    f"lengths: attention: {SHARES} true": ({"attention": True}, {}),
    f"lengths: attention: {SHARES} [0.1, 0.1, 0.1]": ({"attention": [0.1, 0.1, 0.1]}, {}),
    f'lengths: attention: {SHARES} {{"t_f": 0.3, "t_b": 0.3, "t_r": 0}}': (
        {"attention": {"t_f": 0.3, "t_b": 0.3, "t_r": 0}},
        {},
    ),
    f"lengths: attention: t_w: {SHARES} [0, 0, 0]": (
        {"attention": {"t_f": 0.3, "t_b": 0.3, "t_w": [0, 0, 0]}},
        {},
    ),
    'lengths: format: expected "pipeloom.lengths", got "pipeloom.profile"': (
        {"format": "pipeloom.profile"},
        {},
    ),
    "placement: expected one rank for each stage, got auto": ({}, {"placement": "auto"}),
    "placement: expected one rank for each stage, got bidirectional": (
        {},
        {"placement": "bidirectional"},
    ),
}


@pytest.mark.parametrize("expected", BAD)
def test_bad_input_is_one_line(expected: str) -> None:
    changes, more = BAD[expected]
    with pytest.raises(library.InputError) as found:
        library.pack(lengths_document(**changes), profile_document(), 4, **more)
    (line,) = found.value.errors
    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_tokens": 849}, r"849 tokens \(max_tokens\), but sequence 0 has 900"),
        ({"memory_limit": 0.5}, r"500 tokens \(the memory limit\), but sequence 0 has 900"),
        (
            {"microbatches": 3, "max_tokens": 1000},
            r"1000 tokens \(max_tokens\), but the sequences ",
        ),
    ],
)
def test_too_little_room_admits_no_packing_and_says_why(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(library.InfeasibleError, match=f"^no packing: . microbatches of .* {words}"):
        packed(**limits)


def test_a_list_of_lengths_lacks_what_the_times_were_measured_on() -> None:
    with pytest.raises(library.InputError, match="reference_length and attention, got a list"):
        library.pack(LENGTHS, profile_document(), 4)  # type: ignore[arg-type]


def test_a_profile_that_has_what_it_was_packed_of_is_refused() -> None:
    """Files of 0.1.0."""
    document = profile_document() | {"packing": {"lengths": [3]}}
    with pytest.raises(library.InputError, match=r"^p: packing: was removed in 0\.2\.0; a profile"):
        parse_profile(document, "p")


def test_nothing_is_told_of_searches_that_begin_once_it_is_stopped() -> None:
    told: list[object] = []
    found = library.pack(
        *(lengths_document(), profile_document(), 4), progress=told.append, should_stop=lambda: True
    )
    assert len(found.schedules) == 1
    assert [event for event in told if isinstance(event, Searching | Searched)] == []
