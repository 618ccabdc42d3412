"""A profile by layers in the commands that need stages: each family is given as many as it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeloom import verify_schedule
from tests.support.command_line import Command, layers_document, written

HURRY = ("--work-limit", 0.3, "--solver", "heuristic", "-q")


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return written(tmp_path / "layers.json", layers_document())


def sizes(schedule: Path) -> list[int]:
    document = json.loads(schedule.read_text())
    assert verify_schedule(document) == []
    return [len(stage["layers"]) for stage in document["profile"]["stages"]]


# times: the embedding 1, each of six blocks 4, head and loss (never cut apart) 6 and 1
@pytest.mark.parametrize(
    ("family", "way", "expected"),
    [
        ("1f1b", [], [5, 4]),  # 17 and 15
        ("1f1b", ["--partition", "even"], [4, 5]),
        ("zb-v", [], [3, 2, 2, 2]),  # 9, 8, 8, 7
        ("interleaved-1f1b:3", ["--partition", "balanced"], [2, 1, 1, 1, 2, 2]),
        ("wzb2", [], [5, 4]),
    ],
)
def test_a_family_is_built_of_as_many_stages_as_it_runs(
    pipeloom: Command, layers: Path, tmp_path: Path, family: str, way: list[str], expected: Any
) -> None:
    target = tmp_path / "s.json"
    done = pipeloom("build", family, layers, "-m", 6, *way, "-o", target)
    assert done.code == 0
    found = sizes(target)
    assert len(found) == len(expected)
    assert sum(found) == 9
    if family != "interleaved-1f1b:3":  # several cuts have its longest stage
        assert found == expected


def test_the_cut_of_a_schedule_is_taken(pipeloom: Command, layers: Path, tmp_path: Path) -> None:
    even, target = tmp_path / "even.json", tmp_path / "s.json"
    pipeloom("build", "gpipe", layers, "-m", 4, "--partition", "even", "-o", even)
    pipeloom("build", "1f1b", layers, "-m", 4, "--partition", even, "-o", target)
    assert sizes(target) == sizes(even) == [4, 5]


def test_all_of_them_side_by_side(pipeloom: Command, layers: Path) -> None:
    done = pipeloom("compare", layers, "-m", 4, *HURRY, "--json")
    rows = {row["schedule"]: row for row in done.json["results"]}
    assert {"1f1b", "zb-v", "wzb2", "optimize"} <= {n for n, r in rows.items() if "period" in r}
    best = rows["optimize"]
    assert best["lower_bound"] <= best["period"] <= rows["1f1b"]["period"]
    # even blocks: the second rank has 4 + 4 + 4 + 6 + 1 a microbatch
    even = pipeloom("compare", layers, "-m", 4, *HURRY, "--json", "--partition", "even").json
    assert even["results"][1]["period"] > rows["1f1b"]["period"]
    out = pipeloom("compare", layers, "-m", 4, *HURRY, "--placement", "linear").out
    assert "among all cuts and all schedules with one stage a rank" in " ".join(out.split())
    passing = pipeloom("compare", layers, "-m", 4, *HURRY, "--passing", "weights", "--json").json
    assert "passing weights" in passing["results"][-1]["scope"]


def test_limits_are_swept_with_a_cut_each(pipeloom: Command, layers: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = ["sweep", layers, "-m", 6, "--memory-limits", "1,5,9,30", *HURRY]
    done = pipeloom(*words, "-o", folder, "--json")
    results = done.json["results"]
    assert results[0]["status"] == "infeasible"
    assert results[0]["smallest_memory_limit"] == 4.25
    periods = [result["period"] for result in results[1:]]
    assert periods == sorted(periods, reverse=True)
    bounds = [result["lower_bound"] for result in results[1:]]
    assert all(bound <= period * (1 + 1e-9) for bound, period in zip(bounds, periods, strict=True))
    for limit in (5, 9, 30):
        assert sum(sizes(folder / f"schedule-{limit}.json")) == 9
    assert (folder / "frontier.svg").exists()


def test_a_table_of_ops_is_timed_by_layers(pipeloom: Command, layers: Path, tmp_path: Path) -> None:
    schedule, table = tmp_path / "s.json", tmp_path / "s.csv"
    pipeloom("build", "zb-v", layers, "-m", 4, "-o", schedule)
    pipeloom("export", schedule, "--to", "torch-csv", "-o", table)
    back = tmp_path / "back.json"
    done = pipeloom("import", table, "--from", "torch-csv", "--profile", layers, "-o", back)
    assert done.code == 0
    assert json.loads(back.read_text())["order"] == json.loads(schedule.read_text())["order"]
