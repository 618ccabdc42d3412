"""``build`` and ``optimize``: what they write, print, cache and refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeloom import Profile, StageProfile, optimize
from pipeloom.solver import FAMILIES
from tests.support.command_line import Command, profile_document, written

SHORT = ("--work-limit", 0.1, "-q")
STAGE: dict[str, Any] = profile_document()["stages"][0]
TAKEN = "taken from the cache"


def kinds_in(schedule: Path) -> set[str]:
    rows = json.loads(schedule.read_text())["order"]
    return {op["op"] for row in rows for op in row} - {"F", "B", "W", "BW"}


def test_build_lists_families(pipeloom: Command) -> None:
    rows = pipeloom("build", "--list").out.splitlines()[2:]
    listed = pipeloom("build", "--list", "--json").json["families"]
    for names in ([row.split()[0] for row in rows], [family["name"] for family in listed]):
        assert names == list(FAMILIES)


@pytest.mark.parametrize("line", ["build zb-h1 P -m 3", "optimize P -m 3 --work-limit 0.1 -q"])
def test_a_terminal_gets_a_picture_instead_of_the_document(
    pipeloom: Command, profile: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    words = [profile if word == "P" else word for word in line.split()]
    assert pipeloom(*words).json["format"] == "pipeloom.schedule"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = pipeloom(*words)
    assert (shown.code, "{" in shown.out) == (0, False)
    assert "bubble rate" in shown.out
    rows = [row[:8] for row in shown.out.splitlines() if row.startswith("rank")]
    assert rows == ["rank 0 │", "rank 1 │"]
    assert shown.out.endswith("not written: -o FILE writes it, -o - prints it\n")
    assert pipeloom(*words, "-o", "-").json["format"] == "pipeloom.schedule"
    assert pipeloom(*words, "--json").json["ranks"] == 2


@pytest.mark.parametrize("command", [["optimize"], ["build", "zb-h1"]], ids=lambda words: words[0])
def test_an_infeasible_limit_is_a_no_and_the_smallest_that_is_printed_is_enough(
    pipeloom: Command, tmp_path: Path, command: list[str]
) -> None:
    stage = STAGE | {"m_b": 5_712_912.7, "m_w": 1_000_001}
    profile = written(tmp_path / "bytes.json", profile_document(stages=[stage, stage]))
    path = tmp_path / "kept.json"
    path.write_text("kept")
    words = [*command, profile, "-m", 4, *SHORT[: 3 * (command == ["optimize"])], "-o", path]
    done = pipeloom(*words, "--memory-limit", 9)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert path.read_text() == "kept"
    answer = pipeloom(*words, "--memory-limit", 9, "--json").json
    assert answer["status"] == "infeasible"
    assert f"rank {answer['rank']}" in done.err
    printed = done.err.split(" is ")[-1].partition(";")[0].partition(" (")[0].strip()
    for enough in (printed, answer["smallest_memory_limit"]):
        assert pipeloom(*words, "--memory-limit", enough).code == 0


def test_the_second_time_is_a_hit_in_every_command(
    pipeloom: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("-m", 3, *SHORT, "--json")
    one = ["optimize", profile, *words, "--cache", tmp_path / "cache", "--placement", "linear"]
    first, second = pipeloom(*one), pipeloom(*one)
    assert [TAKEN in each.err for each in (first, second)] == [False, True]
    assert second.json == first.json  # including the solve time
    monkeypatch.setenv("PIPELOOM_CACHE", str(tmp_path / "other"))
    assert pipeloom("compare", profile, *words).code == 0
    first, second = (pipeloom("optimize", profile, *words) for _ in range(2))
    assert TAKEN in first.err
    assert second.json == first.json  # including the search time of each placement


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (["--recompute", "none"], {"O", "L"}),
        (["--offload", "none"], {"R"}),
        (["--recompute", "all"], {"R"}),
    ],
)
@pytest.mark.parametrize("by", ["stages", "layers"])
def test_only_the_levers_that_are_wanted_are_pulled(
    pipeloom: Command, tmp_path: Path, by: str, given: list[str], kinds: set[str]
) -> None:
    """Four layers on a V: a rank's two layers hold 2 between F and B, or 1.25 with recomputation or
    offload."""
    costs = STAGE | {"t_r": 1.0, "m_r": 0.25, "m_o": 0.25, "offload_bytes": 1e6}
    layers = [{"name": "layers.{}", "repeat": 4, **costs}]
    pieces = {"stages": [costs] * 2} if by == "stages" else {"stages": None, "layers": layers}
    document = profile_document(host_link={"gigabytes_per_second": 1.0}, **pieces)
    path, limit = tmp_path / "schedule.json", 0.8 if by == "stages" else 1.5
    words = ["optimize", written(tmp_path / "p.json", document), "-m", 3, "--placement", "v"]
    words += ["--memory-limit", limit, "--work-limit", 0.3, "-q", "-o", path]
    assert pipeloom(*words, *given).code == 0
    assert kinds_in(path) == kinds
    assert pipeloom("verify", path).code == 0
    written(path, "kept")
    assert pipeloom(*words, "--recompute", "none", "--offload", "none").code == 1
    assert path.read_text() == '"kept"'


def test_a_slow_rank_is_planned_as_its_stages_with_longer_times_wherever_they_are() -> None:
    profile = Profile((StageProfile(2.0, 3.0, 1.5),) * 4, 4, t_comm=0.1)
    asked: dict[str, Any] = {"work_limit": 0.5, "solver": "heuristic", "objective": "makespan"}
    slow = optimize(profile, 6, slow={1: 1.5}, **asked)
    problem = slow.schedule.problem
    pieces = problem.profile.num_stages // 4
    assert pieces > 1  # a placement other than linear
    for stage, found in enumerate(problem.profile.stages):
        times = 1.5 if problem.placement.owners[stage] == 1 else 1.0
        assert (found.t_f, found.t_b) == (2.0 * times / pieces, 3.0 * times / pieces)
    alone = optimize(problem.profile, 6, placement=problem.placement.name, **asked)
    assert slow.document["order"] == alone.document["order"]
