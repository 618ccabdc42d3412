"""``plan`` and ``predict``: their results and files, and their agreement."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import pipeloom as library
from pipeloom import InfeasibleError, Scaling, plan
from tests.support.command_line import Command, written

WORDS = ("plan", "llama-3-8b", "--gpu", "H100", "--gpus", 4, "--global-batch", 8, "--seq", 2048)
QUICK = ("--pp", 2, "--tp", 2, "--work-limit", 10)
SMALL: dict[str, Any] = {
    **{"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4},
    **{"intermediate_size": 128, "vocab_size": 512, "model_type": "llama"},
}
TPS = {"gpus": 16, "seq": 1024, "global_batch": 32, "tp": 2, "pp": 2, "dp": 4, "micro_batch": 1}


def test_plans_leave_the_headroom_that_is_asked_for(pipeloom: Command, tmp_path: Path) -> None:
    words = [*WORDS, *QUICK]
    free = pipeloom(*words, "--json").json["plans"][0]["free_gib"]
    done = pipeloom(*words, "--headroom", f"{free + 1.0}GiB", "-o", tmp_path, "--json")
    for each in done.json["plans"]:
        assert each["free_gib"] >= free + 1.0
        assert each["memory_gib"] + each["free_gib"] == pytest.approx(79.1)
    assert pipeloom("verify", tmp_path / "schedule.json").code == 0
    assert pipeloom(*words, "--headroom", "none", "--json").json["plans"][0]["free_gib"] == free
    refused = pipeloom(*words, "--headroom", "79GiB")
    assert (refused.code, "of H100 that headroom leaves" in refused.err) == (1, True)


def test_predict_gives_the_figures_of_a_plan_with_a_family(
    pipeloom: Command, tmp_path: Path
) -> None:
    config = written(tmp_path / "config.json", SMALL)
    given = ["--cluster", "H100", "--gpus", 4, "--global-batch", 16, "--seq", 128]
    given += ["--pp", 2, "--schedule", "zb-h1", "--no-sequence-parallel", "--precision", "fp16"]
    shown = pipeloom("plan", config, *given, "--work-limit", 10, "-o", tmp_path).out
    best = json.loads((tmp_path / "plan.json").read_text())["plans"][0]
    layers = ",".join(map(str, best["layers_per_stage"]))
    assert f"layers of each stage: {layers}\n" in shown
    chosen = ("tp", "dp", "cp", "micro_batch", "recompute", "sharding")
    given += [word for key in chosen for word in (f"--{key.replace('_', '-')}", best[key])]
    again = pipeloom("predict", config, *given, "--layers-per-stage", layers, "--json").json
    for key in ("step_ms", "memory_gib"):
        assert again[key] == pytest.approx(best[key], rel=1e-9)


def test_plans_use_sequence_parallelism_unless_told_otherwise() -> None:
    """Also for a model with learned positions, for which ``predict`` assumes none."""
    given: dict[str, Any] = {"gpus": 2, "tp": 2, "layers": 2, "global_batch": 2, "time_limit": 2.0}
    for asked, used in ({}, True), ({"sequence_parallel": False}, False):
        found = plan("gpt-175b", "H100", **given, **asked)
        assert found.best.to_dict()["sequence_parallel"] is used


def test_notes_say_what_the_program_leaves_to_the_model(tmp_path: Path) -> None:
    """The program averages over replicas."""
    fixed = {"layers": 4, "recompute": "none", "schedule": "1f1b", "time_limit": 5.0}
    plan("mixtral-8x7b", "H100", **TPS, **fixed, ep=4, etp=1, sharding="zero1").write(tmp_path)
    program = json.loads((tmp_path / "program.json").read_text())
    assert program["schedule"]["profile"]["data_parallel"]["size"] == 4
    assert "average 0" in program["instructions"][0]
    assert library.verify(program).ok
    notes = json.loads((tmp_path / "plan.json").read_text())["notes"]
    words = "program.json: states are divided (zero1) where stages are in fully_"
    assert [note.startswith(words) for note in notes].count(True) == 1
    assert any("tp 2" in note and "must implement" in note for note in notes)


@pytest.mark.parametrize(
    "how",
    [
        {"schedule": "interleaved-1f1b", "vp": 2},
        {"schedule": "zb-v", "vp": 2, "sharding": "zero1"},
        {"schedule": "1f1b", "sharding": "fsdp"},
    ],
)
def test_the_written_schedule_takes_as_long_as_the_plan_says(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    """Regression: averaging took the link's whole time, although the plan counts only the exposed
    part. The file has the real link."""
    fixed = {"layers": 8, "recompute": "none", "time_limit": 10.0}
    found = plan("llama-3-8b", "H100", **TPS, **fixed, **how)
    found.write(tmp_path)
    document = json.loads((tmp_path / "schedule.json").read_text())
    report, step = document["report"], found.best.step
    assert report["makespan"] < report["iteration_time"] < found.best.step_ms
    assert report["iteration_time"] + step.stepping == pytest.approx(found.best.step_ms, rel=1e-9)
    assert report["lower_bound"] <= report["makespan"]
    assert found.lower_bound <= found.best.step_ms * (1 + 1e-9)
    assert library.verify(document).ok
    replicas = document["profile"]["data_parallel"]
    assert (replicas.pop("exposed") < 1) == (how.get("sharding") != "fsdp")
    assert replicas == {"size": 4} | asdict(step.replica_link)


@pytest.mark.parametrize(("tied", "pp"), [(True, 1), (True, 2), (False, 2)])
def test_a_matrix_that_embedding_and_head_share_is_known_to_the_files(
    pipeloom: Command, tmp_path: Path, tied: bool, pp: int
) -> None:
    run = {"gpus": 2, "pp": pp, "global_batch": 4, "seq": 128, "schedule": "1f1b"}
    told = plan(SMALL | {"tie_word_embeddings": tied}, "H100", **run, time_limit=5.0)
    told.write(tmp_path)
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert profile.get("tied", []) == ([[0, 1]] if tied and pp == 2 else [])
    assert pipeloom("verify", tmp_path / "schedule.json", tmp_path / "program.json").code == 0


def scaled(**more: Any) -> Scaling:
    fixed: dict[str, Any] = {"gpu": "H100", "seq": 4096, "tp": 2, "pp": 2, "vp": 1, "cp": 1}
    fixed |= {"micro_batch": 1, "recompute": "selective", "sharding": "zero1", "schedule": "1f1b"}
    fixed |= {"sequence_parallel": True, "scale": [16, 8], "global_batch": 16, "time_limit": 20}
    found: Scaling = plan("llama-3-8b", **fixed | more)
    return found


def test_the_batch_grows_with_the_gpus(tmp_path: Path) -> None:
    weak = scaled(scale=[16, 8, 24])
    assert [(p.gpus, p.global_batch) for p in weak.points] == [(8, 16), (16, 32), (24, 48)]
    weak.write(tmp_path)
    known = json.loads((tmp_path / "scaling.json").read_text())["points"]
    # with the same microbatches per rank costs are similar
    assert known[0]["efficiency"] == 1.0
    assert known[1]["efficiency"] == pytest.approx(0.96, abs=0.06)
    for point in weak.points:
        parts, found = point.parts, point.plan or {}
        assert sum(parts.values()) == pytest.approx(found["step_ms"])
        assert parts == found["parts_ms"]
        assert min(parts.values()) >= 0 < parts["uneven"]  # the head is on the last rank
    with pytest.raises(InfeasibleError, match="memory"):
        scaled(scale=[4], seq=131072, recompute="none")
