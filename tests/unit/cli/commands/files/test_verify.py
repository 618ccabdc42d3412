"""``verify``: valid or not, and whether a lower bound is checked; certificates of ``optimize``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeloom.planner.explain.certificate import certificate
from tests.support.command_line import Command


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
    assert done.out == f"ok: {plan} is a valid schedule; its lower bound is checked\n"
    document = json.loads(proof.read_text())
    proof.write_text(json.dumps(document | {"lower_bound": 2 * document["lower_bound"]}))
    done = pipeloom("verify", plan, "--certificate", proof)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith(f"{plan}: {proof}: argument: ")
    removed = {"kind": "rank-flow", "rank": 0, "until": "B", "steps": 1, "nodes": []}
    proof.write_text(json.dumps(document | {"argument": removed}))
    done = pipeloom("verify", plan, "--certificate", proof)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"pipeloom: {proof}: argument: kind: rank-flow was removed in 0.2.0; " in done.err
    proof.write_text(json.dumps(document | {"argument": removed | {"kind": "tree"}}))
    line = pipeloom("verify", plan, "--certificate", proof).refusal
    assert line.startswith(f"pipeloom: {proof}: argument: kind: expected work, critical-path, ")
    assert line.endswith(' or moments, got "tree"')


def test_a_bound_without_a_certificate_is_a_no_beside_the_schedule(
    pipeloom: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(certificate.__globals__, "certify", lambda *_: None)
    plan, proof = tmp_path / "plan.json", tmp_path / "proof.json"
    asked = ("optimize", profile, "-m", 2, "-q", "-o", plan, "--certificate", proof)
    done = pipeloom(*asked, "--placement", "linear", "--json")
    assert (done.code, done.json["certificate"]) == (1, None)
    assert done.err.startswith("pipeloom: --certificate: none ")
    assert done.err.endswith(f"; {proof} is not written\n")
    assert pipeloom("verify", plan).code == 0
    assert not proof.exists()


@pytest.mark.parametrize("broken", [False, True])
def test_an_unknown_key_called_schedule_is_no_program(
    pipeloom: Command, schedule: Path, broken: bool
) -> None:
    document = json.loads(schedule.read_text()) | {"schedule": 5}
    if broken:
        document["order"][1][0]["start"] += 0.5
    schedule.write_text(json.dumps(document))
    shown = pipeloom("show", schedule)
    assert (shown.code, "Traceback" in shown.err) == (0, False)
    assert pipeloom("verify", schedule).code == int(broken)


def test_verify_of_a_program(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    assert pipeloom("compile", schedule, "-o", program).code == 0
    answer = pipeloom("verify", program, "--json").json
    assert (answer["kind"], answer["ok"]) == ("program", True)
    document = json.loads(program.read_text())
    document["instructions"][0].remove("0F0")
    program.write_text(json.dumps(document))
    both = pipeloom("verify", schedule, program, "--json")
    assert (both.code, [each["ok"] for each in both.json["files"]]) == (1, [True, False])
    three = pipeloom("verify", tmp_path / "absent", schedule, program)
    assert (three.code, f"ok: {schedule}" in three.out) == (2, True)


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
