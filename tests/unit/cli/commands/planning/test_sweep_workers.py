"""``sweep --workers``: the same as in one process, and a stopped one goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from time import sleep
from typing import Any

import pytest

import pipeloom as library
from tests.support.command_line import Command
from tests.support.inner import Event

WORDS = ("-m", 4, "--memory-limits", "2,0.5,1.5,none", "--work-limit", 0.2, "--seed", 5)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIPELOOM_CACHE", raising=False)


def untimed(folder: Path) -> dict[str, Any]:
    """All documents of a sweep but how long solves took."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items() if key != "solve_seconds"}
        return [plain(each) for each in value] if isinstance(value, list) else value

    found = {path.name: plain(json.loads(path.read_text())) for path in folder.glob("*.json")}
    return found | {"frontier.svg": (folder / "frontier.svg").read_text()}


def test_two_processes_find_what_one_does_and_a_stopped_sweep_goes_on(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    sweep = ["sweep", profile, *WORDS, "-o"]
    assert pipeloom(*sweep, one, "--workers", 1).code == 0
    done = pipeloom(*sweep, two, "--workers", 2)
    assert done.code == 0
    assert "1 of 3 solved in" in done.err  # the fourth is infeasible by its bound
    assert untimed(one) == untimed(two)
    assert {path.name for path in (one / "cache").iterdir()} == {
        path.name for path in (two / "cache").iterdir()
    }
    # as if it had been stopped before the last limits: those known are not solved again
    shutil.rmtree(one)
    shutil.copytree(two / "cache", one / "cache")
    again = pipeloom(*sweep, one, "--workers", 2, "-q")
    assert "solved in" not in again.err
    for number in (2, 3, 4):  # the first is infeasible
        assert re.search(rf"limit {number} of 4 .*: taken from the cache", again.err)
    assert untimed(one) == untimed(two)


def test_what_is_finished_is_kept_when_it_is_stopped(profile: Path, tmp_path: Path) -> None:
    told: list[Event] = []
    found = library.sweep(
        profile,
        4,
        [1.5, 2.0, 4.0],
        output=tmp_path,
        placement="linear",
        work_limit=0.2,
        progress=told.append,
        should_stop=lambda: len(list(tmp_path.glob("cache/*.json"))) == 1,
    )
    assert [swept.limit for swept in found.limits] == [1.5]
    assert str(told[-1]) == "interrupted: 2 limits left out"
    assert (tmp_path / "schedule-1.5.json").exists()


def test_a_folder_has_no_schedules_of_an_earlier_sweep_but_those_that_were_changed(
    profile: Path, tmp_path: Path
) -> None:
    told: list[Event] = []

    def swept(*limits: float) -> set[str]:
        library.sweep(profile, 4, limits, output=tmp_path, work_limit=0.1, progress=told.append)
        return {path.name for path in tmp_path.glob("schedule-*.json")}

    older = tmp_path / "mine.json"
    older.write_text("{}")
    assert swept(1.5, 1.75, 2.0, 3.0, 4.0) == {
        f"schedule-{limit}.json" for limit in ("1.5", "1.75", "2", "3", "4")
    }
    (tmp_path / "schedule-mine.json").write_text("{}")
    (tmp_path / "schedule-1.5.json").unlink()
    later = (tmp_path / "results.json").stat().st_mtime_ns + 1
    os.utime(tmp_path / "schedule-3.json", ns=(later, later))
    sleep(0.05)  # clocks of file systems tick slowly
    older.rename(tmp_path / "schedule-4.json")  # keeps the time when it was written
    kept = ["schedule-3.json", "schedule-4.json", "schedule-mine.json"]
    assert swept(2.0) == {"schedule-2.json", *kept}
    assert str(told[-1]) == f"{tmp_path}: not of this sweep: {', '.join(kept)}"
    assert "schedule-1.5.json" in swept(1.5, 2.0)
    stopped = {"work_limit": 0.1, "should_stop": lambda: True}
    assert len(library.sweep(profile, 4, [2.0, 4.5], output=tmp_path, **stopped).limits) == 1
    assert (tmp_path / "schedule-1.5.json").exists()
    (tmp_path / "results.json").write_text('{"results": [{"file": "../results.json"}, 5]}')
    assert "schedule-3.json" in swept(2.0)
