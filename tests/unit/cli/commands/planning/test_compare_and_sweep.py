"""``compare`` and ``sweep``: rows side by side, limits, and what they print of them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.command_line import Command, Done, layers_document, profile_document, written
from tests.support.families import ELSEWHERE
from tests.support.inner import FAMILIES

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_other_commands_plan_weights_too(
    command: str, pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    more = ["--memory-limits", "1,2", "-o", tmp_path / "out"] if command == "sweep" else []
    line = [command, profile, "-m", 4, "--passing", "weights", "--time-limit", 1, "-q", "--json"]
    results = pipeloom(*line, *more).json["results"]
    if command == "sweep":
        assert [row["status"] for row in results] == ["infeasible", "optimal"]
    else:
        assert results[-1]["scope"] == "passing weights, each stage on one owner"
        assert results[-1]["period"] == 12.0


@pytest.mark.parametrize("document", [profile_document, layers_document])
@pytest.mark.parametrize("command", ["optimize", "build", "compare", "sweep"])
def test_a_profile_with_a_barrier_makes_the_makespan_the_objective(
    command: str, document: Callable[..., dict[str, Any]], tmp_path: Path, pipeloom: Command
) -> None:
    short, out = ["--time-limit", 0.5, "-q"], ["-o", tmp_path / "out"]
    more = {
        "optimize": [*short, *out],
        "build": out,
        "compare": ["--no-optimizer"],
        "sweep": ["--memory-limits", "20", *short, *out],
    }[command]
    family = ["zb-h1"] if command == "build" else []

    def asked(barrier: bool, *words: object) -> Done:
        profile = written(tmp_path / "profile.json", document(barrier=barrier))
        return pipeloom(command, *family, profile, "-m", 4, *more, *words)

    assert asked(True, "--json").json["objective"] == "makespan"
    assert asked(False, "--json").json["objective"] == "period"
    assert asked(True, "--objective", "period", "--json").json["objective"] == "period"
    shown = asked(True).out
    assert re.search("^ *objective:? +makespan, as the profile has", shown, re.MULTILINE)
    assert command != "sweep" or " makespan " in shown.splitlines()[0]
    assert "as the profile has" not in asked(True, "--objective", "period").out


@pytest.mark.parametrize("words", ["compare P --memory-limit 3", "sweep P --memory-limits 3 -o O"])
def test_a_limit_meant_in_gigabytes(pipeloom: Command, tmp_path: Path, words: str) -> None:
    stages = [{"t_f": 1, "t_b": 1, "t_w": 1, "m_b": 2e9, "m_w": 1e9}]
    path = written(tmp_path / "p.json", profile_document(stages=stages))
    line = words.replace("P", str(path)).replace("O", str(tmp_path / "out")).split()
    done = pipeloom(*line, "-m", 2, "-q")
    assert (done.code, "on rank 0; did you mean 3GB?" in done.out) == (1, True)


def test_compare_lays_all_side_by_side(pipeloom: Command, profile: Path) -> None:
    words = ["compare", profile, "-m", 4, "--memory-limit", 2.5, "--time-limit", 5, "-q"]
    words += ["--placement", "linear"]
    results = {r["schedule"]: r for r in pipeloom(*words, "--json").json["results"]}
    assert list(results) == [*FAMILIES, "optimize"]
    assert results["gpipe"]["status"] == "infeasible"
    assert results["gpipe"]["smallest_memory_limit"] == 4.0
    scope = results["optimize"]["scope"]
    built = [r["period"] for r in results.values() if r.get("scope") == scope]
    assert len(built) == 4
    assert results["optimize"]["period"] <= min(built) * (1 + 1e-9)
    rows, apart, footer = pipeloom(*words).out.split("\n\n")
    table = rows.splitlines()
    scopes = re.split(r"\n(?! )", footer)
    among = "optimal among all schedules with one stage a rank, passing activations"
    assert scopes[0] == f"optimize: linear, {among}"
    another = "not covered by this bound, as they have another placement or passing: "
    assert " ".join(scopes[1].split()).startswith(f"{another}interleaved-1f1b, ")
    assert "link bytes -: unknown; the profile's stages need activation_bytes" in footer
    assert "gpipe, looped-bfs: infeasible: needs 4 on rank 0" in scopes
    by_cost = sorted((r for r in results.values() if "period" in r), key=lambda r: r["period"])
    names = [r["schedule"] for r in by_cost if r["passing"] != "weights"]
    assert [line.split()[0] for line in table[2:]] == names
    words, *sent = re.split(r"\n(?! )", apart)  # the profile has no links: weights move for nothing
    assert words.startswith("Not comparable with the rows above, as they send weights (no links")
    weights = [r["schedule"] for r in by_cost if r["passing"] == "weights"]
    assert [line.split()[0] for line in sent] == weights
    assert results["1f1b"]["work_ratio"] == 1.0
    assert max(map(len, (*table, *apart.splitlines(), *footer.splitlines()))) <= 100


def test_compare_names_families_that_devices_do_not_hold(pipeloom: Command, tmp_path: Path) -> None:
    document = profile_document() | {"device_memory": 3.0}
    done = pipeloom("compare", written(tmp_path / "p.json", document), "-m", 6, "--no-optimizer")
    words = done.out.replace("\n ", "")
    assert "gpipe" in words.partition(": does not fit: ")[0]
    assert "more than its device memory 3" in words


def test_compare_shows_bytes_on_the_busiest_link_and_the_balance_of_memory(
    pipeloom: Command, tmp_path: Path
) -> None:
    stage = profile_document()["stages"][0] | {"activation_bytes": 1e6}
    path = written(tmp_path / "p.json", profile_document(stages=[stage, stage]))
    words = ["compare", path, "-m", 4, "--no-optimizer"]
    results = {r["schedule"]: r for r in pipeloom(*words, "--json").json["results"]}
    assert results["1f1b"]["link_bytes"] == 8e6  # four activations and four gradients
    assert results["interleaved-1f1b"]["link_bytes"] == 24e6
    assert results["fsdp"]["link_bytes"] is None  # of weights no size is known
    assert results["1f1b"]["balance"] == 0.5  # one microbatch beside two
    header, _, *rows = pipeloom(*words).out.replace("\n\n", "\n").splitlines()
    assert header.split("  ")[-1].strip() == "balance"
    cells = {row.split()[0]: re.split(r"  +", row)[-3:] for row in rows}
    assert cells["1f1b"] == ["8 MB", "2", "50 %"]
    assert cells["fsdp"][0] == "-"


def test_sweep_leaves_a_schedule_a_limit_and_a_picture(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "made" / "sweep"
    words = ["sweep", profile, "-m", 4, "--memory-limits", "2,0.5,4,none,2", "--time-limit", 3]
    words += ["--placement", "linear"]
    done = pipeloom(*words, "-o", folder, "-q")
    assert (done.code, done.err) == (0, "")
    fault = pipeloom(*words[:5], "20G", "-o", folder).err
    assert fault.startswith("pipeloom: --memory-limits: expected a number in the profile's unit")
    results = json.loads((folder / "results.json").read_text())["results"]
    assert [r["memory_limit"] for r in results] == [0.5, 2.0, 4.0, None]
    assert [r["status"] == "infeasible" for r in results] == [True, False, False, False]
    rates = [r["bubble_rate"] for r in results[1:]]
    assert rates == sorted(rates, reverse=True)
    for result in results[1:]:
        document = json.loads((folder / result["file"]).read_text())
        assert document["report"]["bubble_rate"] == result["bubble_rate"]
    with (folder / "results.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == [r["status"] for r in results]
    ElementTree.parse(folder / "frontier.svg")
    svg = (folder / "frontier.svg").read_text()
    assert "ruled out for all schedules with one stage a rank, passing activations" in svg
    root = ElementTree.fromstring(svg)
    height = float(root.get("height", 0))
    placed = {text.text: float(text.get("y", 0)) for text in root.iter(f"{SVG}text")}
    heading = placed["another placement:"]
    drawn = {name for name in FAMILIES if name in placed}
    assert {"zb-v", "v-min"} <= drawn
    assert "gpipe" not in drawn  # others of one stage a rank hold no more and cost no more
    assert {name for name in drawn if placed[name] > heading} == drawn & set(ELSEWHERE)
    assert max(placed[name] for name in drawn) < height
    answer = pipeloom(*words, "-o", folder, "-q", "--json").json
    assert [r["bubble_rate"] for r in answer["results"]] == [r["bubble_rate"] for r in results]


def test_sweep_keeps_limits_apart_that_differ_late(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    """Files were named by six digits: of two limits in bytes the second took the first's."""
    limits = "400000001,400000002"
    words = ["sweep", profile, "-m", 2, "--memory-limits", limits, "--placement", "linear"]
    assert pipeloom(*words, "-o", tmp_path).code == 0
    schedules = {path.name for path in tmp_path.glob("schedule-*.json")}
    assert schedules == {"schedule-400000001.json", "schedule-400000002.json"}


def test_sweep_of_infeasible_limits_alone_is_a_no(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    assert pipeloom("sweep", profile, "-m", 2, "--memory-limits", "0.1", "-o", tmp_path).code == 1


def test_compare_has_a_column_of_iterations_where_gradients_are_averaged(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    path = tmp_path / "replicas.json"
    document = json.loads(profile.read_text())
    for stage in document["stages"]:
        stage["weight_bytes"] = 3e6
    replicas = {"size": 3, "latency": 0.0, "gigabytes_per_second": 1.0}  # 4 ms for each stage
    path.write_text(json.dumps(document | {"data_parallel": replicas}))
    words = ["compare", path, "-m", 4, "--no-optimizer"]
    results = {r["schedule"]: r for r in pipeloom(*words, "--json").json["results"]}
    out = pipeloom(*words).out
    head, _, *rows = out.split("\n\n", maxsplit=1)[0].splitlines()
    assert head.split()[:3] == ["schedule", "iteration", "period"]
    cells = [row.split() for row in rows if not row.startswith(" ")]
    times = {name: float(time) for name, time, unit, *_ in cells if unit == "ms"}
    assert len(times) > 5
    assert [*times.values()] == sorted(times.values())
    for name, time in times.items():
        assert time == pytest.approx(results[name]["iteration_time"], rel=1e-3)
    assert times["gpipe"] == pytest.approx(results["gpipe"]["period"] + 4.0, rel=1e-3)
    assert "iteration: the period until gradients are averaged over the replicas" in out
    assert "iteration" not in pipeloom("compare", profile, *words[2:]).out
