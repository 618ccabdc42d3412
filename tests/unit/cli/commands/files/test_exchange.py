"""``export`` says what flags go with its file, and ``import`` reads it again."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import Command


def test_the_commands_say_flags_and_read_what_they_wrote(
    pipeloom: Command, layers: Path, tmp_path: Path
) -> None:
    made, text, back = (tmp_path / name for name in ("s.json", "layout.txt", "back.json"))
    assert pipeloom("build", "1f1b", layers, "-m", 4, "-o", made).code == 0
    done = pipeloom("export", made, "--to", "megatron-layout", "-o", text)
    assert f"--pipeline-model-parallel-layout '{text.read_text().strip()}'" in done.out
    alone = pipeloom("export", made, "--to", "megatron-layout", "--micro-batch-size", 3)
    assert (alone.out, "--global-batch-size 12" in alone.err) == (text.read_text(), True)
    told = pipeloom("export", made, "--to", "torch-csv", "--json").json
    assert "--training.local_batch_size 4" in told["flags"]
    read = ["import", text, "--from", "megatron-layout", "--profile", layers]
    assert pipeloom(*read, "-m", 4, "-o", back).code == 0
    assert json.loads(back.read_text())["profile"] == json.loads(made.read_text())["profile"]
    assert pipeloom("build", "zb-v", layers, "-m", 4, "-o", made).code == 0
    assert pipeloom("export", made, "--to", "torch-csv", "-o", text).code == 0
    read = ["import", text, "--from", "torch-csv", "--profile", layers]
    assert pipeloom(*read, "-o", back).code == 0
    assert json.loads(back.read_text())["order"] == json.loads(made.read_text())["order"]


def test_a_schedule_is_planned_for_the_system_that_runs_it(
    pipeloom: Command, layers: Path, tmp_path: Path
) -> None:
    made = tmp_path / "s.json"
    plan = ["optimize", layers, "-m", 4, "--for", "megatron", "-q", "--explain"]
    done = pipeloom(*plan, "-o", made)
    assert done.code == 0
    assert "over all schedules that Megatron runs: optimal" in done.out
    assert "\nwhy no other schedule\n" in done.out
    assert pipeloom("verify", made).code == 0
    assert "not this schedule" not in pipeloom("export", made, "--to", "megatron-layout").err
