"""The functions of the library, for files and for objects, beside what their commands print."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from pipeloom import InputError, Profile, StageProfile, dump_schedule, verify_schedule
from pipeloom.planner.solving.progress import labelled
from tests.support.command_line import profile_document, written
from tests.support.inner import Event, Link, Links, Note, Searched, Searching, main

LIMITED: dict[str, Any] = {"work_limit": 0.1, "solver": "heuristic"}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return written(tmp_path / "profile.json", profile_document())


@pytest.fixture
def schedule(tmp_path: Path, profile: Path) -> Path:
    return written(tmp_path / "schedule.json", dump_schedule(pipeloom.build("zb-h1", profile, 3)))


def test_a_schedule_is_explained_as_its_answer_is(profile: Path) -> None:
    answer = pipeloom.optimize(profile, 3, memory_limit=1, placement="linear", **LIMITED)
    found = answer.explain()
    again = pipeloom.explain(dump_schedule(answer.schedule), seconds=0.0)
    assert found.to_dict()["bound"] == again.to_dict()["bound"]
    assert str(found).startswith("why no schedule is below")


def test_show_draws_what_its_command_draws(schedule: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.svg"
    main(["show", str(schedule), "-o", str(target)])
    pipeloom.show(schedule, output=tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes() == target.read_bytes()
    assert str(pipeloom.show(pipeloom.compile(schedule))).count("rank ") >= 2


def test_progress_is_told_notes_and_searches(tmp_path: Path) -> None:
    events: list[Event] = []
    document = profile_document() | {"memory_limits": 1}
    cache = str(tmp_path / "cache")
    for _ in range(2):
        told = labelled("one", events.append)
        pipeloom.optimize(document, 3, placement="linear", cache=cache, progress=told)
    assert {type(event) for event in events} == {Note, Searching, Searched}
    lines = list(map(str, events))
    assert "memory_limits: unknown key" in lines[0]
    assert lines[-1].startswith("one: taken from the cache")
    assert all(line.startswith("one: ") for line in lines)


def test_a_search_that_is_told_to_stop_has_an_answer(profile: Path) -> None:
    answer = pipeloom.optimize(profile, 3, should_stop=lambda: True)
    assert answer.stopped
    assert verify_schedule(dump_schedule(answer.schedule)) == []


def test_a_problem_is_for_solve() -> None:
    problem = pipeloom.Problem.linear(Profile((StageProfile(1, 1, 1),), 1), 2, 9.0)
    assert pipeloom.solve(problem).report is not None


def test_weights_are_sent_within_device_memory_whatever_the_microbatches() -> None:
    """Owners are then one a microbatch, of which there are no multiple of the stages."""
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5, 1e3, 1e3, 1e3, optimizer_bytes=1e3)
    memory = (1e6,) * 4
    links = Links(Link(0.01, 1.0))
    profile = Profile((stage,) * 4, 4, links=links, device_memory=memory)
    for microbatches in (3, 9):
        answer = pipeloom.optimize(profile, microbatches, passing="weights", work_limit=0.5)
        assert answer.schedule.problem.microbatches == microbatches


FINE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("profile", "key"),
    [
        (Profile((replace(FINE, t_f=-1.0), FINE), 2), "t_f"),
        (Profile((replace(FINE, t_b=float("nan")), FINE), 2), "t_b"),
        (Profile((replace(FINE, m_w=5.0), FINE), 2), "m_w"),
        (Profile((FINE, FINE), 2, t_comm=-5.0), "t_comm"),
        (Profile((FINE, FINE), 2, tied=((0, 9),)), "tied"),
        (Profile((FINE, FINE), 2, memory_limit=(2.0,)), "memory_limit"),
        (Profile((FINE, FINE), 2, memory_limit=(2.0, float("nan"))), "memory_limit"),
        (Profile((), 2), "stages"),
    ],
)
def test_profiles_that_are_objects_are_held_to_the_rules_of_files(
    profile: Profile, key: str
) -> None:
    for call in (pipeloom.optimize, partial(pipeloom.build, "1f1b")):
        with pytest.raises(InputError, match=rf"profile: .*{key}"):
            call(profile, 4)


def test_an_answer_is_taken_for_its_schedule() -> None:
    answer = pipeloom.optimize(Profile((FINE, FINE), 2), 3, work_limit=0.5)
    assert pipeloom.verify(answer).ok
    assert dump_schedule(pipeloom.compile(answer).schedule) == dump_schedule(answer.schedule)
    assert pipeloom.explain(answer).to_dict() == answer.explain().to_dict()


def test_a_misspelt_key_is_warned_of_where_nobody_listens(tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", profile_document() | {"memory_limits": 6})
    with pytest.warns(UserWarning, match="memory_limits"):
        pipeloom.build("1f1b", path, 4)


def test_compare_has_a_row_for_a_profile_that_does_not_fit() -> None:
    table = pipeloom.compare(Profile((FINE,) * 3, 2), 4, placement="v", work_limit=0.1)
    row = table.rows[-1]
    assert (row.name, row.status) == ("optimize", "unsupported")
    assert "expected 2 (to be cut) or 4 for the placement v" in (row.why_not or "")


def test_costs_count_what_is_left_of_averaging(profile: Path) -> None:
    """One placement, placements and schemes alike; the report has the period without it."""
    replicas = {"size": 4, "gigabytes_per_second": 1e-6}
    sizes = {"weight_bytes": 1000.0, "grad_bytes": 1000.0}
    document = profile_document(data_parallel=replicas)
    document["stages"] = [stage | sizes for stage in document["stages"]]
    for options in ({}, {"placement": "auto"}, {"passing": "auto"}):
        answer = pipeloom.optimize(document, 3, **LIMITED | options)
        timing = answer.schedule.known_timing
        assert answer.cost == timing.iteration_time(answer.schedule.problem.objective)
        assert answer.cost > timing.period
