"""What ``show --measured`` says in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.report.attribution import attribute
from pipeloom.report.plan_vs_measured import text
from pipeloom.solver.families import build_family
from tests.support.command_line import Command


def test_what_is_next_to_nothing_is_not_told() -> None:
    profile = Profile((StageProfile(10.0, 11.0, 8.0),) * 2, ranks=2, t_comm=0.1)
    plan = build_family("zb-h1", profile, 4)
    found = attribute(plan, plan)
    words = text(found)
    assert "slack" not in words
    assert "mostly" not in words
    assert "+0.000 ms (+0.0 %)" in text(replace(found, measured=found.planned - 1e-9))
    assert "slack  -0.250  the plan had" in text(replace(found, slack=0.25))


def test_plan_and_measurement_are_processes_of_one_trace(
    pipeloom: Command, tmp_path: Path, schedule: Path
) -> None:
    """By ``--measured``, and as two files, which are called by their names."""
    trace, ran = tmp_path / "both.trace.json", tmp_path / "measured.json"
    document = json.loads(schedule.read_text())
    for op in (op for ops in document["order"] for op in ops):
        op["start"], op["end"] = op["start"] * 1.1, op["end"] * 1.1
    ran.write_text(json.dumps(document))
    for words, names in (
        ((schedule, "--measured", ran), ["planned", "measured"]),
        ((schedule, ran, "--title", "plan", "--title", "run"), ["plan", "run"]),
    ):
        assert pipeloom("show", *words, "-o", trace).code == 0
        events = json.loads(trace.read_text())["traceEvents"]
        shown = [e["args"]["name"] for e in events if e["name"] == "process_name"]
        assert [name.partition(":")[0] for name in shown] == names
