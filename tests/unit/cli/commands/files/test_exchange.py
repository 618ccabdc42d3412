"""``export`` says what flags go with its file, and ``import`` reads a layout."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import Command, layers_document


def test_the_commands_say_flags_and_read_layouts(pipeloom: Command, tmp_path: Path) -> None:
    layers, made, text = (str(tmp_path / name) for name in ("l.json", "s.json", "layout.txt"))
    Path(layers).write_text(json.dumps(layers_document()))
    assert pipeloom("build", "1f1b", layers, "-m", "4", "-o", made).code == 0
    done = pipeloom("export", made, "--to", "megatron-layout", "-o", text)
    assert f"--pipeline-model-parallel-layout '{Path(text).read_text().strip()}'" in done.out
    alone = pipeloom("export", made, "--to", "megatron-layout", "--micro-batch-size", "3")
    assert alone.out == Path(text).read_text()
    assert "--global-batch-size 12" in alone.err
    told = pipeloom("export", made, "--to", "torch-csv", "--json").json
    assert "--training.local_batch_size 4" in told["flags"]
    read = ["import", text, "--from", "megatron-layout", "--profile", layers]
    assert pipeloom(*read, "-m", "4", "-o", tmp_path / "back.json").code == 0
    assert pipeloom(*read).refusal.startswith(
        "pipeloom: -m/--microbatches: missing; expected a number"
    )
    cut = pipeloom(*read, "-m", "4", "--partition", "even")
    assert cut.err.startswith("pipeloom: --partition: expected none, as the layout is one")


def test_a_schedule_is_planned_for_the_system_that_runs_it(
    pipeloom: Command, tmp_path: Path
) -> None:
    layers, made = tmp_path / "l.json", tmp_path / "s.json"
    layers.write_text(json.dumps(layers_document()))
    plan = ["optimize", layers, "-m", "4", "--for", "megatron", "-q"]
    done = pipeloom(*plan, "-o", made)
    assert done.code == 0
    assert "of all schedules that Megatron runs: at most 0 % from the best" in done.out
    assert pipeloom("verify", made).code == 0
    assert "not this schedule" not in pipeloom("export", made, "--to", "megatron-layout").err
    assert pipeloom(*plan, "--placement", "v").refusal.startswith(
        "pipeloom: --placement: expected linear or interleaved"
    )
