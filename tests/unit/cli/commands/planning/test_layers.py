"""A profile by layers in each command: it is cut into the number of stages that are run."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pipeloom import verify
from tests.support.command_line import Command, layers_document, profile_document, written

Write = Callable[..., Path]
SHORT = ("--work-limit", 0.3, "--solver", "heuristic", "-q")
NAMES = ["emb", *(f"layers.{i}" for i in range(6)), "norm", "loss"]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return lambda **changes: written(tmp_path / "layers.json", layers_document(**changes))


def parts(schedule: Path) -> list[list[str]]:
    document = json.loads(schedule.read_text())
    assert verify(document).ok
    found = [[each["name"] for each in s["layers"]] for s in document["profile"]["stages"]]
    assert list(chain.from_iterable(found)) == NAMES
    return found


# times: embedding 1, each of six blocks 4, head 6 and loss 1 (never cut apart)
@pytest.mark.parametrize(
    ("family", "way", "expected"),
    [
        ("1f1b", [], [5, 4]),  # 17 and 15
        ("1f1b", ["--partition", "even"], [4, 5]),
        ("zb-v", [], [3, 2, 2, 2]),  # 9, 8, 8, 7
        ("wzb2", [], [5, 4]),
    ],
)
def test_a_family_is_built_of_as_many_stages_as_it_runs(
    pipeloom: Command, layers: Path, tmp_path: Path, family: str, way: list[str], expected: Any
) -> None:
    target, again = tmp_path / "s.json", tmp_path / "again.json"
    assert pipeloom("build", family, layers, "-m", 6, *way, "-o", target).code == 0
    assert [*map(len, parts(target))] == expected
    taken = pipeloom("build", family, layers, "-m", 6, "--partition", target, "-o", again)
    assert taken.code == 0
    assert parts(again) == parts(target)


def test_stages_are_used_where_there_are_both(pipeloom: Command, write: Write) -> None:
    words = ["optimize", write(stages=profile_document()["stages"]), "-m", 4, *SHORT, "--json"]
    ways = ([], ["--partition", "even"])
    assert ["partition" in pipeloom(*words, *way).json for way in ways] == [False, True]


def test_limits_are_swept_with_a_cut_each(pipeloom: Command, layers: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = ["sweep", layers, "-m", 6, "--memory-limits", "1,5,9,30", *SHORT]
    none, *results = pipeloom(*words, "-o", folder, "--json").json["results"]
    assert (none["status"], none["smallest_memory_limit"]) == ("infeasible", 4.25)
    periods = [result["period"] for result in results]
    assert periods == sorted(periods, reverse=True)
    for result, limit in zip(results, (5, 9, 30), strict=True):
        assert result["lower_bound"] <= result["period"] * (1 + 1e-9)
        assert parts(folder / f"schedule-{limit}.json")
    assert (folder / "frontier.svg").exists()
