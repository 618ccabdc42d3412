"""The cache returns what was stored, only for the same question, and trusts no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pipeloom import Profile, StageProfile, dump_schedule, optimize
from pipeloom.planner import Result

PROFILE = Profile((StageProfile(1.0, 1.1, 0.9, 1.0, 0.5), StageProfile(1.0, 1.0, 1.0)), 2, 0.1)
ASKED: dict[str, Any] = {"placement": "linear", "memory_limit": 2.0, "work_limit": 1.0}


class Folder:
    """A cache, with the notes that it emitted."""

    def __init__(self, path: Path) -> None:
        self.path, self.said = path, list[str]()
        self.first = self.ask()

    def ask(self, profile: Profile = PROFILE, microbatches: int = 3, **other: Any) -> Result:
        self.said.clear()

        def listen(event: object) -> None:
            self.said.append(str(event))

        options = ASKED | other | {"cache": str(self.path), "progress": listen}
        return optimize(profile, microbatches, **options)

    @property
    def hit(self) -> bool:
        return any("taken from the cache" in line for line in self.said)

    @property
    def ignored(self) -> list[str]:
        return [line for line in self.said if "is ignored" in line]

    @property
    def entry(self) -> Path:
        (path,) = self.path.glob("*.json")
        return path

    def change(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Edit the entry, and update its digest."""
        entry = json.loads(self.entry.read_text())
        change(entry)
        content = {key: entry[key] for key in ("key", "schedule", "facts")}
        entry["digest"] = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        self.entry.write_text(json.dumps(entry))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "new" / "cache")


def test_what_is_kept_is_found_for_the_same_question_only(folder: Folder) -> None:
    again = folder.ask()
    assert (folder.hit, folder.ignored) == (True, [])
    assert dump_schedule(again.schedule) == dump_schedule(folder.first.schedule)
    others: list[dict[str, Any]] = [
        *({"seed": 1}, {"solver": "milp"}, {"work_limit": 2.0}, {"memory_limit": 2.5}),
        *({"work_limit": None, "time_limit": 0.1}, {"work_limit": None, "time_limit": 0.2}),
        *({"microbatches": 4}, {"memory_limit": None}, {"objective": "makespan"}),
        *({"profile": replace(PROFILE, t_comm=0.2)}, {"placement": [1, 0]}),
        {"profile": replace(PROFILE, stages=PROFILE.stages[::-1])},
    ]
    hits = []
    for other in others:
        folder.ask(**other)
        hits.append(folder.hit)
    assert not any(hits)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\0", '{"format": "pipeloom.schedule"}'])
def test_a_damaged_entry_is_ignored_with_a_note(text: str, folder: Folder) -> None:
    folder.entry.write_text(text)
    folder.ask()
    assert (folder.hit, len(folder.ignored)) == (False, 1)
    assert "\n" not in folder.ignored[0]


def weakened(entry: dict[str, Any]) -> None:
    report = entry["schedule"]["report"]
    report |= {"lower_bound": report["period"] / 2, "gap": 0.5, "status": "feasible"}


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "not valid": lambda entry: entry["schedule"]["order"][0].reverse(),
    "another question": lambda entry: entry.update(key="other"),
    "weaker": weakened,
}


@pytest.mark.parametrize("why", CHANGES)
def test_an_entry_that_is_no_answer_is_ignored(why: str, folder: Folder) -> None:
    folder.change(lambda entry: None)
    folder.ask()
    assert folder.hit
    folder.change(CHANGES[why])
    found = folder.ask()
    assert (folder.hit, found.cost) == (False, folder.first.cost)
    assert why in folder.ignored[0]


def test_what_cannot_be_written_is_a_note(folder: Folder) -> None:
    path = folder.entry
    path.unlink()
    path.mkdir()
    assert folder.ask().cost == folder.first.cost
    assert any(str(path) in line for line in folder.said)
