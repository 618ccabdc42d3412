"""``compare`` and ``sweep``: tables, limits, and continuing an interrupted sweep."""

from __future__ import annotations

import json
import re
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import pytest

import pipeloom as library
from pipeloom.planner import Event
from pipeloom.solver import FAMILIES
from tests.support.command_line import Command, layers_document, profile_document, untimed, written

SHORT = ("--work-limit", 0.2, "-q")


@pytest.mark.parametrize(
    "line",
    [
        "optimize l.json --work-limit 0.1 -q -o OUT",
        "build zb-h1 p.json -o OUT",
        "compare p.json --no-optimizer",
        "sweep p.json --memory-limits 20 --work-limit 0.1 -q -o OUT",
    ],
)
def test_a_profile_with_a_barrier_makes_the_makespan_the_objective(
    pipeloom: Command, tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, document in ("p", profile_document), ("l", layers_document):
        written(tmp_path / f"{name}.json", document(barrier=True))
    words = [*line.split(), "-m", 4]
    assert pipeloom(*words, "--json").json["objective"] == "makespan"
    assert re.search("^ *objective:? +makespan, because", pipeloom(*words).out, re.M)
    asked = [*words, "--objective", "period"]
    assert pipeloom(*asked, "--json").json["objective"] == "period"
    assert "because" not in pipeloom(*asked).out


def test_compare_lays_all_side_by_side(pipeloom: Command, profile: Path) -> None:
    words = ["compare", profile, "-m", 4, "--memory-limit", 2.5, *SHORT, "--placement", "linear"]
    results = {r["schedule"]: r for r in pipeloom(*words, "--json").json["results"]}
    assert list(results) == [*FAMILIES, "optimize"]
    assert results["gpipe"]["status"] == "infeasible"
    assert results["gpipe"]["smallest_memory_limit"] == 4.0
    assert results["1f1b"]["work_ratio"] == 1.0
    scope = results["optimize"]["scope"]
    built = [r["period"] for r in results.values() if r.get("scope") == scope]
    assert len(built) == 4
    assert results["optimize"]["period"] <= min(built) * (1 + 1e-9)
    rows, apart, footer = pipeloom(*words).out.split("\n\n")
    assert re.search(r"gpipe,.*: infeasible: needs 4 on rank 0", footer)
    by_cost = sorted((r for r in results.values() if "period" in r), key=lambda r: r["period"])
    names = [r["schedule"] for r in by_cost if r["passing"] != "weights"]
    assert [line.split()[0] for line in rows.splitlines()[2:]] == names
    # the profile has no links, so that passing weights takes no time
    weights = [r["schedule"] for r in by_cost if r["passing"] == "weights"]
    assert [line.split()[0] for line in re.split(r"\n(?! )", apart)[1:]] == weights
    assert max(map(len, "\n".join((rows, apart, footer)).splitlines())) <= 100


def test_compare_shows_links_memory_and_iterations_where_they_are_known(
    pipeloom: Command, tmp_path: Path
) -> None:
    stage = profile_document()["stages"][0] | {"activation_bytes": 1e6, "weight_bytes": 3e6}
    replicas = {"size": 3, "latency": 0.0, "gigabytes_per_second": 1.0}  # 4 ms per stage
    document = profile_document(stages=[stage] * 2, data_parallel=replicas)
    words = ["compare", written(tmp_path / "p.json", document), "-m", 4, "--no-optimizer"]
    results = {r["schedule"]: r for r in pipeloom(*words, "--json").json["results"]}
    assert results["1f1b"]["link_bytes"] == 8e6  # four activations and four gradients
    assert results["interleaved-1f1b"]["link_bytes"] == 24e6
    assert results["1f1b"]["balance"] == 0.5  # peaks of one and two microbatches
    # gradients are averaged after each step, in 4 ms
    assert results["gpipe"]["iteration_time"] == results["gpipe"]["period"] + 4.0
    head, _, *rows = pipeloom(*words).out.split("\n\n", maxsplit=1)[0].splitlines()
    assert re.split("  +", head.strip())[:3] == ["schedule", "iteration", "period"]
    assert re.search(r"^1f1b .*  8 MB  +2  +50 %$", "\n".join(rows), re.M)
    written(tmp_path / "p.json", profile_document())
    assert "iteration" not in pipeloom(*words).out
    unknown = {r["schedule"]: r for r in pipeloom(*words, "--json").json["results"]}
    assert unknown["fsdp"]["link_bytes"] is None  # sizes of weights are unknown


def test_sweep_leaves_a_schedule_a_limit_and_a_picture(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "made" / "sweep"
    words = ["sweep", profile, "-m", 4, "--placement", "linear", *SHORT, "-o", folder]
    # regression: file names had six digits, so that two limits in bytes had the same file
    limits = ("--memory-limits", "2,0.5,400000001,400000002,none,2")
    done = pipeloom(*words, *limits)
    assert (done.code, done.err) == (0, "")
    results = json.loads((folder / "results.json").read_text())["results"]
    assert [r["memory_limit"] for r in results] == [0.5, 2.0, 400000001, 400000002, None]
    assert [r["status"] == "infeasible" for r in results] == [True] + [False] * 4
    rates = [r["bubble_rate"] for r in results[1:]]
    assert rates == sorted(rates, reverse=True)
    for result in results[1:]:
        document = json.loads((folder / result["file"]).read_text())
        assert document["report"]["bubble_rate"] == result["bubble_rate"]
    assert len({result["file"] for result in results[1:]}) == 4
    ElementTree.parse(folder / "frontier.svg")
    assert pipeloom(*words, "--memory-limits", "0.1").code == 1
    with patch("pipeloom.planner.sweep.families", side_effect=OSError(5, "no luck")):
        assert pipeloom(*words, "--memory-limits", "2").code == 1
    assert not (folder / "results.json").exists()  # those of the sweep before


def solved(folder: Path) -> dict[str, Any]:
    """All documents of a sweep, without solve times."""
    found = {path.name: untimed(json.loads(path.read_text())) for path in folder.glob("*.json")}
    return found | {"frontier.svg": (folder / "frontier.svg").read_text()}


def test_a_stopped_sweep_keeps_what_is_finished_and_goes_on_in_several_processes(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    told: list[Event] = []
    options: dict[str, Any] = {"work_limit": 0.2, "seed": 5, "progress": told.append}
    options["should_stop"] = lambda: len(list(two.glob("cache/*.json"))) == 1
    limits = [0.5, 1.5, 2.0, inf]
    found = library.sweep(profile, 4, limits, output=two, placement="linear", **options)
    assert [row.name for row in found.rows] == ["0.5", "1.5"]  # the first is infeasible
    assert str(told[-1]) == "interrupted: 2 limits left out"
    assert (two / "schedule-1.5.json").exists()
    words = ["sweep", profile, "-m", 4, "--memory-limits", "2,0.5,1.5,none", "--work-limit", 0.2]
    words += ["--seed", 5, "--placement", "linear"]
    assert pipeloom(*words, "-o", one, "--workers", 1).code == 0
    done = pipeloom(*words, "-o", two, "--workers", 2)
    assert done.code == 0
    assert "3 of 3 solved in" in done.err
    assert re.search("limit 2 of 4 .*: taken from the cache", done.err)
    assert solved(one) == solved(two)
