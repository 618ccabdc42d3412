"""``verify``: validity, and whether a lower bound is checked; certificates of ``optimize``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import Command, written


def test_verify_says_ok_or_every_violation(
    pipeloom: Command, schedule: Path, program: Path, tmp_path: Path
) -> None:
    done = pipeloom("verify", schedule)
    assert (done.code, done.out) == (0, f"ok: {schedule} is a valid schedule\n")
    # an unknown key that is valid in a program is ignored
    document = json.loads(schedule.read_text()) | {"schedule": 5}
    assert pipeloom("verify", written(schedule, document)).code == 0
    document["order"][0].pop()
    document["order"][1][0]["start"] += 0.5
    done = pipeloom("verify", program, written(schedule, document), "--json")
    (ours, other), lines = done.json["files"], pipeloom("verify", schedule).out.splitlines()
    assert (done.code, ours["ok"], other["ok"]) == (1, True, False)
    assert len(lines) > 1
    assert [f"{schedule}: {v}" for v in other["violations"]] == lines
    three = pipeloom("verify", tmp_path / "absent", schedule, program)
    assert (three.code, f"ok: {program}" in three.out) == (2, True)


def test_a_certificate_proves_a_bound(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    plan, proof = tmp_path / "plan.json", tmp_path / "proof.json"
    asked = ("optimize", profile, "-m", 4, "--work-limit", 1, "-q", "--placement", "linear")
    assert pipeloom(*asked, "-o", plan, "--certificate", proof).code == 0
    checked = f"ok: {plan} is a valid schedule; its lower bound is checked\n"
    assert pipeloom("verify", plan, "--certificate", proof).out == checked
    document = json.loads(proof.read_text())
    written(proof, document | {"lower_bound": 2 * document["lower_bound"]})
    done = pipeloom("verify", plan, "--certificate", proof)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith(f"{plan}: {proof}: argument: ")
    for argument, words in (
        ({"kind": "rank-flow", "rank": 0}, "rank-flow was removed in 0.2.0; "),
        ({"kind": "moments", "nodes": []}, "nodes was removed in 0.2.0; "),
        ({"kind": "tree", "rank": 0}, "kind: expected work"),
    ):
        written(proof, document | {"argument": argument})
        line = pipeloom("verify", plan, "--certificate", proof).refusal
        assert line.startswith(f"pipeloom: {proof}: argument: {words}")


def test_a_forged_bound_is_said_to_be_unchecked(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    """The file claims a bound equal to the cost, which would make the schedule optimal."""
    forged = tmp_path / "forged.json"
    assert pipeloom("build", "gpipe", profile, "-m", 4, "-o", forged).code == 0
    document = json.loads(forged.read_text())
    report = document["report"]
    report |= {"lower_bound": report["period"], "gap": 0.0, "status": "optimal"}
    written(forged, document)
    unchecked = "its lower bound is not checked, but taken from the file\n"
    assert pipeloom("verify", forged).out == f"ok: {forged} is a valid schedule; {unchecked}"
    assert pipeloom("verify", forged, "--json").json["lower_bound"].startswith("not checked")
    assert pipeloom("show", forged).err == f"pipeloom: note: {forged}: {unchecked}"
