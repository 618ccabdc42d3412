"""What the commands answer, in files, for people and as JSON."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pipeloom.report.text_table import WIDEST
from tests.support.command_line import ENVIRONMENT, Command, profile_document, written
from tests.support.families import ELSEWHERE, TRAVELLING


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


def test_without_output_the_document_is_standard_output(pipeloom: Command, profile: Path) -> None:
    done = pipeloom("build", "gpipe", profile, "-m", 2)
    assert done.json["format"] == "pipeloom.schedule"
    assert "bubble rate" in done.err


def test_build_lists_the_families(pipeloom: Command) -> None:
    from pipeloom.solver.families import FAMILIES

    lines = pipeloom("build", "--list").out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(FAMILIES)
    listed = pipeloom("build", "--list", "--json").json["families"]
    assert [family["name"] for family in listed] == list(FAMILIES)


def test_optimize_answers_with_its_report(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    done = pipeloom("optimize", profile, "-m", 4, "-o", path, "--json", "--time-limit", 5)
    assert done.code == 0
    report = json.loads(path.read_text())["report"]
    assert {key: done.json[key] for key in report} == report
    assert done.json["output"] == str(path)
    assert report["lower_bound"] <= report["period"] * (1 + 1e-9)
    assert "best" in done.err  # its progress
    assert pipeloom("optimize", profile, "-m", 4, "-q", "--json").err == ""


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


def test_auto_names_every_placement_and_the_bound_of_all(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    words = ["optimize", profile, "-m", 2, "--time-limit", 0.8, "-q", "--placement", "auto"]
    answer = pipeloom(*words, "-o", tmp_path / "schedule.json", "--json").json["choice"]
    assert {entry["placement"] for entry in answer["placements"]} >= {"linear", "v", "wave:2"}
    costs = [entry["cost"] for entry in answer["placements"] if entry["cost"] is not None]
    assert answer["lower_bound"] <= min(costs)
    assert costs == sorted(costs)
    done = pipeloom(*words, "-o", tmp_path / "schedule.json")
    assert done.code == 0
    assert "of all these placements" in done.out
    none = pipeloom(*words, "--memory-limit", 0.1)
    assert none.code == 1
    assert "no placement fits" in none.err


def test_auto_is_for_optimize(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    for words in (["compare", profile], ["sweep", profile, "--memory-limits", 2, "-o", tmp_path]):
        done = pipeloom(*words, "-m", 2, "--placement", "auto", "-q")
        said = " ".join((done.out + done.err).split())
        assert "expected one placement here, got 'auto': optimize alone chooses" in said


def test_ranks_may_have_different_numbers_of_stages(pipeloom: Command, tmp_path: Path) -> None:
    profile, owners = tmp_path / "profile.json", tmp_path / "owners.json"
    stage = {"t_f": 1, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 0.5}
    profile.write_text(json.dumps(profile_document(stages=[stage] * 3)))
    owners.write_text("[0, 1, 0]")
    words = ["optimize", profile, "-m", 2, "--time-limit", 2, "-q"]
    document = pipeloom(*words, "--placement", owners).json
    assert [{op["stage"] for op in ops} for ops in document["order"]] == [{0, 2}, {1}]


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
    for command in (["optimize"], ["build", "zb-h1"]):
        words = [*command, path, "-m", 3, "--memory-limit"]
        printed = pipeloom(*words, 9).err.split(" is ")[-1].strip()
        assert pipeloom(*words, printed, "--json").code == 0


def test_compare_of_what_nothing_fits_is_a_no(pipeloom: Command, profile: Path) -> None:
    done = pipeloom("compare", profile, "-m", 4, "--memory-limit", 0.5, "-q", "--json")
    assert {result["status"] for result in done.json["results"]} == {"infeasible"}
    assert done.code == 1


def test_compare_lays_all_side_by_side(pipeloom: Command, profile: Path) -> None:
    from pipeloom.solver.families import FAMILIES

    words = ["compare", profile, "-m", 4, "--memory-limit", 2.5, "--time-limit", 5, "-q"]
    results = {r["schedule"]: r for r in pipeloom(*words, "--json").json["results"]}
    assert list(results) == [*FAMILIES, "optimize"]
    assert results["gpipe"]["status"] == "infeasible"
    assert results["gpipe"]["smallest_memory_limit"] == 4.0
    scope = results["optimize"]["scope"]
    built = [r["period"] for r in results.values() if r.get("scope") == scope]
    assert len(built) == 4
    assert results["optimize"]["period"] <= min(built) * (1 + 1e-9)
    rows, footer = pipeloom(*words).out.split("\n\n")
    table = rows.splitlines()
    assert footer.splitlines() == [
        "optimize, its bound and gap: of all schedules with one stage a rank, passing activations",
        "of another placement or passing, which may cost less: interleaved-1f1b, "
        "interleaved-1f1b-grouped, "
        "zb-v, v-half, v-min, wave, dualpipev, chimera,",  # dualpipe and wzb1 need more memory
        "  weipipe-naive, weipipe-interleave, wzb2, fsdp, weights-inside, activations-inside",
    ]
    by_cost = sorted(results.values(), key=lambda r: r.get("period", math.inf))
    assert [line.split()[0] for line in table[2:]] == [r["schedule"] for r in by_cost]
    assert results["1f1b"]["work_ratio"] == 1.0
    assert "infeasible: needs 4 on rank 0" in next(line for line in table if "gpipe" in line)


@pytest.mark.parametrize(
    ("changes", "size", "note"),
    [
        ({"t_comm": None}, {}, "no links in the profile: transfers counted as free"),
        ({}, {}, "no links in the profile: transfers counted as t_comm each"),
        (
            {"links": {"gigabytes_per_second": 1}},
            {},
            "weight_bytes unknown: transfers counted as free",
        ),
        ({"links": {"gigabytes_per_second": 1}}, {"weight_bytes": 1e6}, None),
    ],
)
def test_weights_that_travel_for_free_are_marked(
    pipeloom: Command, tmp_path: Path, changes: dict[str, object], size: object, note: str | None
) -> None:
    stage = profile_document()["stages"][0] | size
    path = written(tmp_path / "p.json", profile_document(stages=[stage, stage], **changes))
    words = ["compare", path, "-m", 4, "--no-optimizer"]
    results = {r["schedule"]: r for r in pipeloom(*words, "--json").json["results"]}
    notes = {name: result["note"] for name, result in results.items()}
    # of two ranks weights-inside makes islands of one, inside which nothing travels
    assert {notes.pop(name) for name in TRAVELLING if name != "weights-inside"} == {note}
    assert notes.pop("pipedream") == "asynchronous: gradients lag by up to 1 update"
    assert set(notes.values()) == {None}
    out = pipeloom(*words).out
    assert max(map(len, out.splitlines())) <= WIDEST
    row = next(line for line in re.split(r"\n(?! )", out) if line.startswith("activations-inside"))
    assert " ".join(row.split()).endswith(f"feasible; {note}" if note else "feasible")
    said = pipeloom("build", "weipipe-interleave", path, "-m", 4, "--json").err
    assert said == (f"pipeloom: {path}: {note}\n" if note else "")


def test_sweep_leaves_a_schedule_a_limit_and_a_picture(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "made" / "sweep"
    words = ["sweep", profile, "-m", 4, "--memory-limits", "2,0.5,4,none,2", "--time-limit", 3]
    done = pipeloom(*words, "-o", folder, "-q")
    assert (done.code, done.err) == (0, "")
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
    assert "no schedule with one stage a rank, passing activations, can be there" in svg
    assert svg.count(">another placement</text>") == len(ELSEWHERE)  # in the legend
    answer = pipeloom(*words, "-o", folder, "-q", "--json").json
    assert [r["bubble_rate"] for r in answer["results"]] == [r["bubble_rate"] for r in results]


def test_sweep_keeps_limits_apart_that_differ_late(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    """Files were named by six digits: of two limits in bytes the second took the first's."""
    limits = "400000001,400000002"
    assert pipeloom("sweep", profile, "-m", 2, "--memory-limits", limits, "-o", tmp_path).code == 0
    schedules = {path.name for path in tmp_path.glob("schedule-*.json")}
    assert schedules == {"schedule-400000001.json", "schedule-400000002.json"}


def test_limits_are_called_as_they_were_typed(
    pipeloom: Command, tmp_path: Path, profile: Path
) -> None:
    stage = profile_document()["stages"][0] | {"m_b": 5e9, "m_w": 1e9}
    profile.write_text(json.dumps(profile_document(stages=[stage, stage])))
    words = [
        "sweep",
        profile,
        "-m",
        3,
        "--memory-limits",
        "20e9,1GiB, 12.5 GB,none",
        "-o",
        tmp_path,
    ]
    done = pipeloom(*words)
    assert [line.split("  ")[0] for line in done.out.splitlines()[2:-1]] == [
        "1GiB", "12.5GB", "20e9", "none"
    ]  # fmt: skip
    assert "infeasible: needs 5 G" in done.out
    lines = done.err.splitlines()
    assert "pipeloom: 4 limits, at most 30 s each (--time-limit)" in lines
    assert "pipeloom: limit 1 of 4 (1GiB): infeasible" in lines
    assert any(s.startswith("limit 3 of 4 (20e9): ") and s.endswith("  optimal") for s in lines)
    assert {path.name for path in tmp_path.glob("schedule-*.json")} == {
        "schedule-12.5GB.json", "schedule-20e9.json", "schedule-none.json"
    }  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [r["memory_limit"] for r in results] == [2.0**30, 12.5e9, 20e9, None]


def test_sweep_of_infeasible_limits_alone_is_a_no(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    assert pipeloom("sweep", profile, "-m", 2, "--memory-limits", "0.1", "-o", tmp_path).code == 1


def test_show_draws_by_the_extension(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    for extension, begin in ((".svg", "<svg"), (".html", "<!doctype html>"), (".txt", "small: ")):
        path = tmp_path / f"x{extension}"
        done = pipeloom("show", schedule, "-o", path)
        assert (done.code, done.out) == (0, f"written to {path}\n")
        assert path.read_text().startswith(begin)
    trace = tmp_path / "x.trace.json"
    assert pipeloom("show", schedule, "-o", trace).code == 0
    assert json.loads(trace.read_text())["traceEvents"]


def test_show_in_the_terminal_has_no_colours_but_on_one(pipeloom: Command, schedule: Path) -> None:
    plain = pipeloom("show", schedule, "--columns", 60)
    assert plain.code == 0
    assert "\x1b" not in plain.out
    assert "\x1b" in pipeloom("show", schedule, "--colour", "always").out
    assert pipeloom("show", schedule, "--json").json["schedules"][0]["microbatches"] == 3


def test_show_says_that_a_schedule_can_never_run(
    pipeloom: Command, schedule: Path, tmp_path: Path
) -> None:
    document = json.loads(schedule.read_text())
    row = document["order"][0]
    row.insert(0, row.pop())  # its last W first
    stuck = written(tmp_path / "stuck.json", document)
    done = pipeloom("show", stuck)
    assert done.code == 0
    assert done.err.startswith(f"pipeloom: note: {stuck}: can never run: ")
    assert "0F0 (rank 0) waits for 0W2 (rank 0) waits for 0B2 (rank 0)" in done.err
    assert done.err.endswith("drawn by the times in the file\n")
    assert pipeloom("show", schedule).err == ""


def test_show_of_two_files_draws_both(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    other = tmp_path / "measured.json"
    shutil.copy(schedule, other)
    svg = pipeloom("show", schedule, other, "--as", "svg").out
    assert ">schedule</text>" in svg
    assert ">measured</text>" in svg
    trace = json.loads(pipeloom("show", schedule, other, "--as", "trace").out)
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1}


def test_show_calls_panels_by_their_titles(pipeloom: Command, schedule: Path) -> None:
    titles = ["--title", "12 GB & more", "--title", "16 GB"]
    svg = pipeloom("show", schedule, schedule, *titles, "--as", "svg").out
    assert ">12 GB &amp; more</text>" in svg
    assert ">16 GB</text>" in svg
    assert pipeloom("show", schedule, *titles[2:]).out.startswith("16 GB, 2 ranks")
    assert (
        pipeloom("show", schedule, *titles).refusal
        == "pipeloom: --title: expected one for each of 1 files, got 2"
    )


def test_png_needs_a_converter(
    pipeloom: Command, schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = pipeloom("show", schedule, "-o", tmp_path / "x.png")
    assert done.code == 2
    assert done.err.endswith("write .svg instead\n")
    fake = tmp_path / "rsvg-convert"
    fake.write_text("#!/bin/sh\nprintf PNG\n")
    fake.chmod(0o755)
    assert pipeloom("show", schedule, "-o", tmp_path / "x.png").code == 0
    assert (tmp_path / "x.png").read_bytes() == b"PNG"


def test_compile_and_show_its_program(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    done = pipeloom("compile", schedule, "--tied", "0,1", "-o", program, "--json")
    assert done.code == 0
    instructions = json.loads(program.read_text())["instructions"]
    assert done.json["instructions"] == list(map(len, instructions))
    assert "reduce 0 1" in instructions[0]
    shown = pipeloom("show", program, "--columns", 80).out
    assert shown == pipeloom("show", schedule, "--columns", 80).out


def test_verify_says_ok_or_every_violation(
    pipeloom: Command, schedule: Path, tmp_path: Path
) -> None:
    done = pipeloom("verify", schedule)
    assert (done.code, done.out) == (0, f"ok: {schedule} is a valid schedule\n")
    document = json.loads(schedule.read_text())
    document["order"][0].pop()
    document["order"][1][0]["start"] += 0.5
    schedule.write_text(json.dumps(document))
    done = pipeloom("verify", schedule)
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert len(lines) > 1
    assert all(line.startswith(f"{schedule}: ") for line in lines)
    answer = pipeloom("verify", schedule, "--json")
    assert answer.code == 1
    assert not answer.json["ok"]
    assert [f"{schedule}: {v}" for v in answer.json["violations"]] == lines


def test_a_certificate_proves_a_bound(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    plan, proof = tmp_path / "plan.json", tmp_path / "proof.json"
    asked = ("optimize", profile, "-m", 4, "--work-limit", 5, "-o", plan, "--certificate", proof)
    assert pipeloom(*asked).code == 0
    done = pipeloom("verify", plan, "--certificate", proof)
    assert (done.code, done.out) == (
        0,
        f"ok: {plan} is a valid schedule; its lower bound is checked\n",
    )
    document = json.loads(proof.read_text())
    proof.write_text(json.dumps(document | {"lower_bound": 2 * document["lower_bound"]}))
    done = pipeloom("verify", plan, "--certificate", proof)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith(f"{plan}: {proof}: argument: ")
    flow = {"kind": "rank-flow", "rank": 0, "until": "B", "steps": 0}
    proof.write_text(json.dumps(document | {"objective": "speed", "argument": flow}))
    done = pipeloom("verify", plan, "--certificate", proof)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"pipeloom: {proof}: objective: expected ")
    assert f"pipeloom: {proof}: argument: steps: expected a whole number >= 1" in done.err


def test_what_has_no_certificate_is_refused_before_the_search(
    pipeloom: Command, tmp_path: Path
) -> None:
    path, plan, proof = tmp_path / "p.json", tmp_path / "plan.json", tmp_path / "proof.json"
    pairs = [stage | {"t_fb": 1.5} for stage in profile_document()["stages"]]
    path.write_text(json.dumps(profile_document(stages=pairs)))
    done = pipeloom("optimize", path, "-m", 2, "-q", "-o", plan, "--certificate", proof)
    expected = f"--certificate: expected no t_fb in {path}: none yet where ops overlap"
    assert (done.code, done.out, done.err) == (2, "", f"pipeloom: {expected}\n")
    assert not plan.exists()
    assert not proof.exists()


def test_a_bound_without_a_certificate_is_a_no_beside_the_schedule(
    pipeloom: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeloom.planner.explain.certificate.certify", lambda *_: None)
    plan, proof = tmp_path / "plan.json", tmp_path / "proof.json"
    asked = ("optimize", profile, "-m", 2, "-q", "-o", plan, "--certificate", proof)
    done = pipeloom(*asked, "--json")
    assert (done.code, done.json["certificate"]) == (1, None)
    assert done.err.startswith("pipeloom: --certificate: none ")
    assert done.err.endswith(f"; {proof} is not written\n")
    assert pipeloom("verify", plan).code == 0
    assert not proof.exists()


def test_verify_of_what_lacks_a_key(pipeloom: Command, schedule: Path) -> None:
    document = json.loads(schedule.read_text())
    del document["order"][1][0]["end"]
    schedule.write_text(json.dumps(document))
    done = pipeloom("verify", schedule)
    expected = "schedule: order[1][0]: end: missing; expected a finite number >= 0"
    assert (done.code, done.out, done.err) == (2, "", f"pipeloom: {schedule}: {expected}\n")


def test_verify_of_a_program(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    assert pipeloom("compile", schedule, "-o", program).code == 0
    answer = pipeloom("verify", program, "--json").json
    assert (answer["kind"], answer["ok"]) == ("program", True)
    document = json.loads(program.read_text())
    document["instructions"][0].remove("0F0")
    program.write_text(json.dumps(document))
    assert pipeloom("verify", program).code == 1


def test_verify_of_neither(pipeloom: Command, profile: Path) -> None:
    assert (
        'format: expected "pipeloom.schedule" or "pipeloom.program"'
        in pipeloom("verify", profile).refusal
    )


def test_export_and_import_keep_the_order(
    pipeloom: Command, profile: Path, schedule: Path, tmp_path: Path
) -> None:
    text, back = tmp_path / "x.csv", tmp_path / "back.json"
    assert pipeloom("export", schedule, "--to", "torch-csv", "-o", text).code == 0
    assert pipeloom("export", schedule, "--to", "torch-csv").out == text.read_text()
    read = ["import", text, "--from", "torch-csv", "--profile", profile]
    assert pipeloom(*read, "-o", back).code == 0
    assert json.loads(back.read_text())["order"] == json.loads(schedule.read_text())["order"]
    assert pipeloom(*read, "--json").json["microbatches"] == 3


def pipeline(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A shell pipeline whose ``pipeloom`` is this checkout's."""
    function = f'pipeloom() {{ "{sys.executable}" -m pipeloom "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", function + script],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_standard_input_and_output_join_commands(profile: Path, tmp_path: Path) -> None:
    done = pipeline(
        "set -o pipefail; cat profile.json | pipeloom build zb-h1 - -m 3 -o - 2>words "
        "| tee schedule.json | pipeloom compile - -o - 2>/dev/null | pipeloom show - --columns 60",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("small: zb-h1, 2 ranks, 2 stages, 3 microbatches\nrank 0 │F0")
    assert "bubble rate" in (tmp_path / "words").read_text()


def test_a_closed_pipe_is_quiet(profile: Path, tmp_path: Path) -> None:
    done = pipeline("pipeloom build gpipe profile.json -m 3000 2>err | head -c 10", tmp_path)
    assert done.stdout == '{"format":'
    assert "Traceback" not in (tmp_path / "err").read_text() + done.stderr


def test_wrong_usage_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = pipeline("pipeloom show missing.json", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pipeloom: missing.json: no such file\n"


def test_a_bug_is_one_line_and_no_traceback(
    pipeloom: Command, schedule: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug\nof ours")

    monkeypatch.setattr("pipeloom.ir.formats.schedule_json.parse_schedule", broken)
    monkeypatch.setattr("pipeloom.ir.formats.parse_schedule", broken)
    done = pipeloom("show", schedule)
    assert done.code == 70
    assert done.err.startswith("pipeloom: internal error: KeyError: ")
    assert done.err.count("\n") == 1
    monkeypatch.setenv("PIPELOOM_TRACEBACK", "1")
    with pytest.raises(KeyError):
        pipeloom("show", schedule)


def test_output_through_a_link_keeps_the_link(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    assert pipeloom("build", "gpipe", profile, "-m", 2, "-o", link).code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["format"] == "pipeloom.schedule"
    assert target.stat().st_mode & 0o777 == 0o600
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_one_entry_without_a_number_of_stages_is_shared_by_all_ranks(
    pipeloom: Command, tmp_path: Path
) -> None:
    entry = profile_document()["stages"][:1]
    path = written(tmp_path / "shared.json", profile_document(stages=entry, ranks=3))
    assert pipeloom("build", "1f1b", path, "-m", 2, "--json").json["stages"] == 3


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


def test_compare_says_that_bounds_cover_pairs(pipeloom: Command, tmp_path: Path) -> None:
    stage = {"t_f": 1.0, "t_b": 1.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5, "t_fb": 2.0}
    path = written(tmp_path / "pairs.json", profile_document(stages=[stage], num_stages=4))
    asked = ["compare", path, "-m", 8, "--placement", "v", "--work-limit", 0.1, "-q"]
    rows = {row["schedule"]: row for row in pipeloom(*asked, "--json").json["results"]}
    assert rows["optimize"]["lower_bound"] <= rows["optimize"]["period"]
    assert rows["optimize"]["period"] <= rows["dualpipev"]["period"]
    assert rows["dualpipev"]["scope"] == rows["optimize"]["scope"]
    said = pipeloom(*asked).out
    assert "in a V, passing activations, with pairs or without them" in said
    (others,) = [line for line in said.splitlines() if "of another placement or passing" in line]
    assert "dualpipev" not in others
    assert "interleaved-1f1b" in others
    (busy,) = [line for line in said.splitlines() if line.startswith("busy for another time")]
    assert "dualpipev" in busy
    assert rows["dualpipev"]["work_ratio"] < rows["zb-v"]["work_ratio"] == 1.0
    first = said.splitlines()[2].split()
    assert first[0] == min(rows.values(), key=lambda row: row.get("period", math.inf))["schedule"]


def test_a_forged_bound_is_said_to_be_unchecked(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    """The cost as the bound makes a schedule optimal, whoever says so."""
    best, forged = tmp_path / "best.json", tmp_path / "forged.json"
    assert pipeloom("optimize", profile, "-m", 4, "-q", "-o", best).code == 0
    assert pipeloom("verify", best).out.endswith("; its lower bound is checked\n")
    assert pipeloom("show", best, "--as", "svg").err == ""
    assert pipeloom("build", "gpipe", profile, "-m", 4, "-o", forged).code == 0
    document = json.loads(forged.read_text())
    report = document["report"]
    report |= {"lower_bound": report["period"], "gap": 0.0, "status": "optimal"}
    forged.write_text(json.dumps(document))
    unchecked = "its lower bound is not checked, but taken from the file\n"
    assert pipeloom("verify", forged).out == f"ok: {forged} is a valid schedule; {unchecked}"
    assert pipeloom("verify", forged, "--json").json["lower_bound"].startswith("not checked")
    assert pipeloom("show", forged).err == f"pipeloom: note: {forged}: {unchecked}"
