"""Public functions with files and with objects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from pipeloom import Profile, StageProfile, dump_schedule
from pipeloom.ir import Link, Links
from pipeloom.planner import Event, Note
from tests.support.command_line import profile_document

FINE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
QUICK: dict[str, Any] = {"work_limit": 0.1, "solver": "heuristic"}


def test_an_answer_is_taken_for_its_schedule() -> None:
    answer = pipeloom.optimize(Profile((FINE, FINE), 2), 3, memory_limit=1, **QUICK)
    assert pipeloom.verify(answer).ok
    assert dump_schedule(pipeloom.compile(answer).schedule) == dump_schedule(answer.schedule)
    explained = answer.explain().to_dict()
    assert pipeloom.explain(answer).to_dict() == explained
    again = pipeloom.explain(dump_schedule(answer.schedule))
    assert again.to_dict()["bound"] == explained["bound"]
    assert str(pipeloom.show(pipeloom.compile(answer))).count("rank ") >= 2


def test_progress_is_told_notes_and_searches(tmp_path: Path) -> None:
    document, cache = profile_document() | {"memory_limits": 1}, str(tmp_path / "cache")
    first, second = list[Event](), list[Event]()
    for told in (first, second):
        pipeloom.optimize(document, 3, placement="linear", cache=cache, progress=told.append)
    kinds = {type(event).__name__ for event in first}
    assert {type(event) for event in second} == {Note}
    assert kinds == {"Note", "Searching"}
    assert "memory_limits: unknown key" in str(first[0])
    assert str(second[-1]).startswith("taken from the cache")
    with pytest.warns(UserWarning, match="memory_limits"):  # without a listener
        pipeloom.build("1f1b", document, 4)


def test_weights_are_sent_within_device_memory_whatever_the_microbatches() -> None:
    """There is one owner per microbatch, and the number of microbatches is no multiple of the
    stages."""
    stage = replace(FINE, activation_bytes=1e3, weight_bytes=1e3, grad_bytes=1e3)
    stages = (replace(stage, optimizer_bytes=1e3),) * 4
    profile = Profile(stages, 4, links=Links(Link(0.01, 1.0)), device_memory=(1e6,) * 4)
    for microbatches in (3, 9):
        answer = pipeloom.optimize(profile, microbatches, passing="weights", work_limit=0.5)
        assert answer.schedule.problem.microbatches == microbatches


def test_costs_count_what_is_left_of_averaging() -> None:
    """For a single placement, several placements, and schemes; the report has the period without
    it."""
    link = {"gigabytes_per_second": 1e-6}
    document = profile_document(data_parallel={"size": 4, **link}, links=link)
    for stage in document["stages"]:
        stage |= {"weight_bytes": 1000.0, "grad_bytes": 1000.0, "activation_bytes": 1.0}
    for options in ({"placement": "linear"}, {"placement": "auto"}, {"passing": "auto"}):
        answer = pipeloom.optimize(document, 3, **QUICK | options)
        timing = answer.schedule.known_timing
        assert answer.cost == timing.iteration_time(answer.schedule.problem.objective)
        assert answer.cost > timing.period
