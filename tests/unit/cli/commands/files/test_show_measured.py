"""What ``show --measured`` says in words."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import Command


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
        assert [name.partition(",")[0] for name in shown] == names
