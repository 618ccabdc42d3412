"""The cache gives back what it was given, for the same question only, and trusts no file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeloom import Objective, Placement, Problem, Profile, Schedule, StageProfile, dump_schedule
from pipeloom import solve as optimize
from pipeloom.planner.solving.cache import Question, ScheduleCache, digest
from tests.support.inner import SolveOptions

PROFILE = Profile((StageProfile(1.0, 1.1, 0.9, 1.0, 0.5), StageProfile(1.0, 1.0, 1.0)), 2, 0.1)
OPTIONS = SolveOptions(time_limit=5.0)
QUESTION = Question(Problem.linear(PROFILE, 3, 2.0), OPTIONS)


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return optimize(QUESTION.problem, time_limit=60.0)


class Folder:
    """A cache and the notes it made."""

    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self.cache = ScheduleCache(str(path), self.notes.append)

    def change(self, change: Callable[[dict[str, Any]], object], *, fitting: bool = True) -> None:
        """Edits the schedule of the entry; with the digest that fits it then."""
        path = self.cache.path(QUESTION)
        entry = json.loads(path.read_text())
        change(entry["schedule"])
        if fitting:
            entry["digest"] = digest({"schedule": entry["schedule"]})
        path.write_text(json.dumps(entry))


@pytest.fixture
def folder(tmp_path: Path, schedule: Schedule) -> Folder:
    folder = Folder(tmp_path / "new" / "cache")
    folder.cache.keep(QUESTION, schedule)
    return folder


def test_what_is_kept_is_found(folder: Folder, schedule: Schedule) -> None:
    known = folder.cache.find(QUESTION)
    assert known is not None
    found, _ = known
    assert dump_schedule(found) == dump_schedule(schedule)
    assert found.problem is QUESTION.problem
    assert found.report == schedule.report
    assert folder.notes == []


OTHERS = {
    **{
        name.replace("_", " "): replace(QUESTION, options=replace(OPTIONS, **{name: value}))
        for name, value in (
            ("seed", 1),
            ("solver", "milp"),
            ("time_limit", 6.0),
            ("work_limit", 6.0),
        )
    },
    "steps compared": replace(QUESTION, by_step=True),
    **{
        name: replace(QUESTION, problem=problem)
        for name, problem in {
            "microbatches": Problem.linear(PROFILE, 4, 2.0),
            "limit": Problem.linear(PROFILE, 3, 2.5),
            "no limit": Problem.linear(PROFILE, 3, math.inf),
            "objective": Problem.linear(PROFILE, 3, 2.0, Objective.MAKESPAN),
            "delay": Problem.linear(replace(PROFILE, t_comm=0.2), 3, 2.0),
            "stage": Problem.linear(replace(PROFILE, stages=PROFILE.stages[::-1]), 3, 2.0),
            "placement": Problem(PROFILE, 3, Placement.of_stages((1, 0)), (2.0, 2.0)),
        }.items()
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_question_has_another_key(name: str, folder: Folder) -> None:
    assert OTHERS[name].key != QUESTION.key
    assert folder.cache.find(OTHERS[name]) is None
    assert folder.notes == []


def test_another_version_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = QUESTION.key
    monkeypatch.setattr("pipeloom.planner.solving.cache.__version__", "9.9")
    assert QUESTION.key != before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\0", '{"format": "pipeloom.schedule"}'])
def test_a_damaged_entry_is_ignored_with_a_note(text: str, folder: Folder) -> None:
    folder.cache.path(QUESTION).write_text(text)
    assert folder.cache.find(QUESTION) is None
    assert len(folder.notes) == 1
    assert "is ignored" in folder.notes[0]
    assert "\n" not in folder.notes[0]


def test_a_changed_entry_does_not_fit_its_digest(folder: Folder) -> None:
    folder.change(lambda document: document["report"].update(solver="milp"), fitting=False)
    assert folder.cache.find(QUESTION) is None
    assert "digest" in folder.notes[0]


def test_an_entry_that_breaks_the_rules_is_ignored(folder: Folder) -> None:
    folder.change(lambda document: document["order"][0].reverse())
    assert folder.cache.find(QUESTION) is None
    assert "not valid" in folder.notes[0]


def test_an_answer_to_another_question_is_ignored(folder: Folder) -> None:
    other = OTHERS["microbatches"]
    folder.cache.keep(other, optimize(other.problem, time_limit=1.0))
    folder.cache.path(other).rename(folder.cache.path(QUESTION))
    assert folder.cache.find(QUESTION) is None
    assert "another question" in folder.notes[0]


def test_a_bound_weaker_than_the_one_at_hand_is_not_taken(folder: Folder) -> None:
    def weaken(document: dict[str, Any]) -> None:
        cost = document["report"]["period"]
        document["report"] |= {
            "lower_bound": cost / 2, "gap": 0.5, "status": "feasible"
        }  # fmt: skip

    folder.change(weaken)
    assert folder.cache.find(QUESTION) is None
    assert "weaker" in folder.notes[0]


def test_what_cannot_be_written_is_a_note(folder: Folder, schedule: Schedule) -> None:
    path = folder.cache.path(QUESTION)
    path.unlink()
    path.mkdir()
    folder.cache.keep(QUESTION, schedule)
    assert len(folder.notes) == 1
