"""``build`` and ``optimize``: what they write, print and refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.command_line import Command, profile_document, written


def test_build_writes_a_schedule_and_says_what_it_is(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    done = pipeloom("build", "zb-h1", profile, "-m", 3, "-o", path)
    assert (done.code, done.err) == (0, "")
    document = json.loads(path.read_text())
    assert document["format"] == "pipeloom.schedule"
    lines = dict(line.strip().split("  ", 1) for line in done.out.splitlines()[1:-1])
    rate = document["report"]["bubble_rate"]
    assert lines["bubble rate"].strip() == f"{rate:.2%} of the period".replace("%", " %")
    assert done.out.endswith(f"written to {path}\n")


@pytest.mark.parametrize(
    "line", ["build zb-h1 P -m 3", "optimize P -m 3 --work-limit 1 -q"], ids=["build", "optimize"]
)
def test_a_terminal_gets_a_picture_instead_of_the_document(
    pipeloom: Command, profile: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    words = [profile if word == "P" else word for word in line.split()]
    piped = pipeloom(*words)
    assert json.loads(piped.out)["format"] == "pipeloom.schedule"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = pipeloom(*words)
    assert (shown.code, "{" in shown.out) == (0, False)
    assert "bubble rate" in shown.out
    assert [row[:8] for row in shown.out.splitlines() if row.startswith("rank")] == [
        "rank 0 \u2502", "rank 1 \u2502"
    ]  # fmt: skip
    assert shown.out.endswith("not written: -o FILE writes it, -o - prints it\n")
    assert json.loads(pipeloom(*words, "-o", "-").out)["format"] == "pipeloom.schedule"
    assert pipeloom(*words, "--json").json["ranks"] == 2


def test_build_lists_the_families(pipeloom: Command) -> None:
    from pipeloom.solver import FAMILIES

    lines = pipeloom("build", "--list").out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(FAMILIES)
    listed = pipeloom("build", "--list", "--json").json["families"]
    assert [family["name"] for family in listed] == list(FAMILIES)


def test_optimize_plans_weights_that_travel(
    pipeloom: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One document after the other: optimized, verified, compiled, verified, explained, kept."""
    stage = {"t_f": 1.0, "t_b": 1.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5, "weight_bytes": 5e5}
    links = {"latency": 0.0, "gigabytes_per_second": 1.0, "shared": "ring"}
    profile, path, program = (tmp_path / name for name in ("p.json", "s.json", "program.json"))
    profile.write_text(json.dumps(profile_document(stages=[stage] * 3, ranks=4, links=links)))
    monkeypatch.setenv("PIPELOOM_CACHE", str(tmp_path / "cache"))
    line = ["optimize", profile, "-m", 13, "--passing", "weights", "--memory-limit", 6]
    done = pipeloom(*line, "-o", path, "--json", "--explain")
    assert done.code == 0
    assert done.json["passing"] == "weights"
    assert done.json["lower_bound"] == 36.0  # four microbatches of nine on rank 0
    assert max(done.json["peak_memory"]) <= 6
    assert done.json["explanation"]["bound"]["words"]
    assert pipeloom("verify", path).code == 0
    assert pipeloom("compile", path, "-o", program).code == 0
    assert pipeloom("verify", program).code == 0
    assert "taken from the cache" in pipeloom(*line, "-o", path, "--json").err


def test_weights_that_fit_on_no_device_exit_1(pipeloom: Command, tmp_path: Path) -> None:
    stage = {"t_f": 1.0, "t_b": 1.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5, "weight_bytes": 100.0}
    path = written(tmp_path / "p.json", profile_document(stages=[stage] * 4, device_memory=300.0))
    done = pipeloom("optimize", path, "-m", 4, "--passing", "weights", "--time-limit", 0.2, "-q")
    assert done.code == 1
    # of two stages each rank has weights and gradients, of a third one while it computes
    assert done.err.startswith("pipeloom: device_memory 300 is too small for rank")


@pytest.mark.parametrize("command", ["optimize", "compare", "sweep"])
def test_what_a_device_lacks_is_no_memory_limit(
    command: str, pipeloom: Command, tmp_path: Path
) -> None:
    stage = {"t_f": 1.0, "t_b": 1.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5, "weight_bytes": 100.0}
    path = written(tmp_path / "p.json", profile_document(stages=[stage] * 4, device_memory=300.0))
    more = ["--memory-limits", "4,8", "-o", tmp_path / "out"] if command == "sweep" else []
    line = [command, path, "-m", 4, "--passing", "weights", "--time-limit", 0.2, "-q", *more]
    answer = pipeloom(*line, "--json").json
    row = answer if command == "optimize" else answer["results"][-1]
    assert row["status"] == "infeasible"
    assert row["smallest_device_memory"] > 300
    assert row.get("smallest_memory_limit") is None
    if command != "optimize":
        assert "of device memory" in pipeloom(*line).out


def test_limited_work_gives_the_same_file(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    documents = []
    for name in "once", "again":
        words = [
            "optimize",
            profile,
            "-m",
            5,
            "--memory-limit",
            2.5,
            "--work-limit",
            5,
            "--seed",
            7,
        ]
        assert pipeloom(*words, "-o", tmp_path / name).code == 0
        documents.append(json.loads((tmp_path / name).read_text()))
        assert documents[-1]["report"].pop("solve_seconds") > 0
    assert documents[0] == documents[1]


@pytest.mark.parametrize(
    ("placement", "stages"),
    [
        ("interleaved:2", [{0, 2}, {1, 3}]),
        ("v", [{0, 3}, {1, 2}]),
        ("wave:2", [{0, 3, 4, 7}, {1, 2, 5, 6}]),
        ("[0, 1, 1, 0]", [{0, 3}, {1, 2}]),
        ('{"0": 1, "1": 0}', [{1}, {0}]),
    ],
)
def test_optimize_places_stages(
    pipeloom: Command, profile: Path, tmp_path: Path, placement: str, stages: list[set[int]]
) -> None:
    if placement[0] in "[{":
        (tmp_path / "owners.json").write_text(placement)
        placement = str(tmp_path / "owners.json")
    words = ["optimize", profile, "-m", 2, "--time-limit", 2, "-q"]
    document = pipeloom(*words, "--placement", placement).json
    assert [{op["stage"] for op in ops} for ops in document["order"]] == stages


@pytest.mark.parametrize("command", [["optimize"], ["build", "zb-h1"]], ids=lambda words: words[0])
def test_an_infeasible_limit_is_a_no_that_names_the_smallest(
    pipeloom: Command, profile: Path, tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "kept.json"
    path.write_text("kept")
    seconds = ["--time-limit", 2] if command[0] == "optimize" else []
    words = [*command, profile, "-m", 4, *seconds, "--memory-limit", 0.5, "-o", path]
    done = pipeloom(*words)
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1
    assert path.read_text() == "kept"
    answer = pipeloom(*words, "--json").json
    assert answer["status"] == "infeasible"
    assert f"limit is {answer['smallest_memory_limit']:g}" in done.err or (
        f"for this family is {answer['smallest_memory_limit']:g}" in done.err
    )
    assert f"rank {answer['rank']}" in done.err
    enough = [
        *command,
        profile,
        "-m",
        4,
        *seconds,
        "--memory-limit",
        answer["smallest_memory_limit"],
    ]
    assert pipeloom(*enough, "--json").code == 0


def test_the_smallest_limit_that_is_printed_is_enough(pipeloom: Command, tmp_path: Path) -> None:
    stage = profile_document()["stages"][0] | {"m_b": 5_712_912.7, "m_w": 1_000_001}
    path = written(tmp_path / "bytes.json", profile_document(stages=[stage, stage]))
    for command in (["optimize", "--placement", "linear"], ["build", "zb-h1"]):
        words = [*command, path, "-m", 3, "--memory-limit"]
        printed = pipeloom(*words, 9).err.split(" is ")[-1].partition(";")[0].partition(" (")[0]
        assert pipeloom(*words, printed, "--json").code == 0


def test_one_entry_without_a_number_of_stages_is_shared_by_all_ranks(
    pipeloom: Command, tmp_path: Path
) -> None:
    entry = profile_document()["stages"][:1]
    path = written(tmp_path / "shared.json", profile_document(stages=entry, ranks=3))
    assert pipeloom("build", "1f1b", path, "-m", 2, "--json").json["stages"] == 3
