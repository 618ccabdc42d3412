"""``plan`` as a command: what it finds and writes, and faults in one line."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pipeloom import plan, predict, verify_schedule
from tests.support.command_line import Command

WORDS = ("plan", "llama-3-8b", "--gpu", "H100", "--gpus", 4, "--global-batch", 8, "--seq", 2048)
SMALL: dict[str, Any] = {
    **{"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4},
    **{"intermediate_size": 128, "vocab_size": 512, "model_type": "llama"},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "config.json"
    path.write_text(json.dumps(SMALL))
    return path


def test_what_is_written_is_valid_and_is_what_is_told(pipeloom: Command, tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    done = pipeloom(*WORDS, "--pp", 2, "--tp", 2, "--work-limit", 10, "-o", folder, "--json")
    assert done.code == 0
    best = done.json["plans"][0]
    assert done.json["lower_bound"] <= best["lower_bound"] <= best["step_ms"] * (1 + 1e-9)
    assert sum(best["parts_ms"].values()) == pytest.approx(best["step_ms"])
    assert done.json["gap"] < 0.2
    for name in ("schedule.json", "program.json"):
        assert pipeloom("verify", folder / name).code == 0
    assert (folder / "plan.svg").read_text().startswith("<svg")
    assert json.loads((folder / "plan.json").read_text())["plans"][0]["name"] == best["name"]
    assert (
        "--parallelism.tensor_parallel_degree 2"
        in (folder / "torchtitan.json.flags").read_text().splitlines()
    )


def test_plans_leave_the_headroom_that_is_asked_for(pipeloom: Command, tmp_path: Path) -> None:
    words, folder = [*WORDS, "--tp", 2, "--pp", 2, "--work-limit", 10], tmp_path / "plan"
    free = pipeloom(*words, "--json").json["plans"][0]["free_gib"]
    done = pipeloom(*words, "--headroom", f"{free + 1.0}GiB", "-o", folder, "--json")
    for each in done.json["plans"]:
        assert each["free_gib"] >= free + 1.0
        assert each["memory_gib"] + each["free_gib"] == pytest.approx(79.1)
    assert pipeloom("verify", folder / "schedule.json").code == 0
    assert pipeloom(*words, "--headroom", "none", "--json").json["plans"][0]["free_gib"] == free
    refused = pipeloom(*words, "--headroom", "79GiB")
    assert refused.code == 1
    assert "of H100 that headroom leaves" in refused.err


def test_a_search_that_ended_early_does_not_claim_that_nothing_fits(pipeloom: Command) -> None:
    for work in (3, 10):
        done = pipeloom(*WORDS, "--pp", 2, "--work-limit", work, "-q")
        assert done.code == 1
        assert "no plan that fits was found in the time given" in done.err


def test_the_words_of_the_table_are_explained(pipeloom: Command) -> None:
    shown = " ".join(pipeloom(*WORDS, "--tp", 2, "--pp", 2, "--work-limit", 10).out.split())
    assert "plan: tp = tensor parallel ranks; " in shown
    assert "b = sequences in a microbatch" in shown
    assert "fsdp = " not in shown
    assert "likely: the interval that the step is in" in shown


@pytest.mark.parametrize(
    "words",
    [
        ["--pp", 2, "--schedule", "zb-h1", "--no-sequence-parallel", "--precision", "fp16"],
        ["--pp", 2, "--vp", 2, "--micro-batch", 2],
        ["--tp", 2, "--recompute", "full"],
        ["--pp", 2, "--vp", 3, "--headroom", "2GB"],
        ["--pp", 4, "--passing", "weights"],
    ],
)
def test_the_command_that_predicts_the_plan_gives_its_figures(
    pipeloom: Command, config: Path, tmp_path: Path, words: list[Any]
) -> None:
    given = ["plan", config, "--cluster", "H100", "--gpus", 4, "--global-batch", 16]
    shown = pipeloom(*given, "--seq", 128, "--work-limit", 30, "-o", tmp_path, *words).out
    best = json.loads((tmp_path / "plan.json").read_text())["plans"][0]
    line = next(line for line in shown.splitlines() if "pipeloom predict" in line)
    again = pipeloom(*shlex.split(line.rpartition("pipeloom ")[2]), "--json").json
    for key in ("step_ms", "memory_gib"):
        assert again[key] == pytest.approx(best[key], rel=1e-9)
    layers = ",".join(map(str, best["layers_per_stage"]))
    assert f"layers of each stage: {layers}\n" in shown


def test_the_passing_that_loses_is_named_with_its_reason(pipeloom: Command) -> None:
    words = (*WORDS, "--pp", 4, "--work-limit", 10)
    both = pipeloom(*words, "--passing", "auto").out
    assert "\npassing weights: no schedule that fits was found; none takes less than " in both
    assert "\npassing " not in pipeloom(*words).out


def test_the_best_is_no_slower_than_what_is_predicted_for_any_other(pipeloom: Command) -> None:
    found = plan("llama-3-8b", "H100", gpus=4, global_batch=8, seq=2048, work_limit=2)
    run = {"gpus": 4, "global_batch": 8, "seq": 2048, "sharding": "zero1"}
    for degrees in ({"tp": 4}, {"tp": 2, "pp": 2}, {"tp": 2}, {"pp": 4}, {"pp": 4, "vp": 2}):
        other = predict("llama-3-8b", cluster="H100", **run, **degrees)
        assert found.lower_bound <= other.step_ms
        if other.memory_gib <= 79.1:
            assert found.best.step_ms <= other.step_ms
    assert len(found.other_rates) == 8
    assert "no plan takes less than" in str(found)
    assert "memory bandwidth -10 %: " in str(found)  # no capacity
    nearly = [(found.space.cluster.gpu.memory_gib + 0.01, "pp4")]
    short = replace(found, ranking=replace(found.ranking, too_large=nearly))
    assert "pp4 is at least 10 MiB short" in str(short)


def test_megatron_runs_a_plan_of_its_own_schedule(
    pipeloom: Command, config: Path, tmp_path: Path
) -> None:
    words = ("plan", config, "--gpu", "H100", "--gpus", 4, "--pp", 2, "--global-batch", 16)
    done = pipeloom(*words, "--seq", 128, "--schedule", "1f1b", "-o", tmp_path)
    assert done.code == 0
    flags = (tmp_path / "megatron.txt.flags").read_text()
    assert "--pipeline-model-parallel-size 2" in flags
    assert "--global-batch-size 16" in flags
    assert (tmp_path / "megatron.txt").read_text().startswith("E")


@pytest.mark.parametrize(
    ("given", "torchtitan", "megatron"),
    [
        (
            {"ep": 4, "etp": 1, "sharding": "zero1"},
            {
                "--parallelism.data_parallel_shard_degree 4",
                "--parallelism.fsdp_reshard_after_forward never",
                "--parallelism.expert_parallel_degree 4",
                "--parallelism.expert_tensor_parallel_degree 1",
            },
            {"--expert-model-parallel-size 4", "--expert-tensor-parallel-size 1", "--bf16"},
        ),
        (
            {"ep": 1, "etp": 1, "sharding": "fsdp", "precision": "fp8"},
            {"--parallelism.fsdp_reshard_after_forward always"},
            {"--expert-tensor-parallel-size 1", "--fp8-format hybrid", "--use-megatron-fsdp"},
        ),
    ],
)
def test_flags_of_other_systems_are_those_of_the_plan(
    pipeloom: Command,
    tmp_path: Path,
    given: dict[str, Any],
    torchtitan: set[str],
    megatron: set[str],
) -> None:
    """Those of its program say that it averages over replicas, and what the model is to do."""
    run = {"gpus": 16, "global_batch": 32, "seq": 1024, "layers": 4, "tp": 2, "pp": 2, "dp": 4}
    fixed = {"micro_batch": 1, "recompute": "none", "schedule": "1f1b"}
    plan("mixtral-8x7b", "H100", **run, **fixed, **given, time_limit=5.0).write(tmp_path)
    for file, flags in (("torchtitan.json", torchtitan), ("megatron.txt", megatron)):
        found = (tmp_path / f"{file}.flags").read_text().splitlines()
        assert flags <= {*found}
        assert all(line.startswith("--") for line in found)
    program = json.loads((tmp_path / "program.json").read_text())
    assert program["schedule"]["profile"]["data_parallel"]["size"] == 4
    assert "average 0" in program["instructions"][0]
    assert pipeloom("verify", tmp_path / "program.json").code == 0
    notes = json.loads((tmp_path / "plan.json").read_text())["notes"]
    words = f"program.json: states are divided ({given['sharding']}) where stages are in fully_"
    assert [note.startswith(words) for note in notes].count(True) == 1
    assert any("tp 2" in note and "are up to its stages" in note for note in notes)
    assert ("torchtitan: without ep etp is 2, in this plan 1" in notes) == (given["ep"] == 1)


@pytest.mark.parametrize(
    "how",
    [
        {"schedule": "1f1b"},
        {"schedule": "interleaved-1f1b", "vp": 2},
        {"schedule": "zb-v", "vp": 2, "sharding": "zero1"},
        {"schedule": "1f1b", "sharding": "fsdp"},
    ],
)
def test_the_written_schedule_takes_as_long_as_the_plan_says(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    """Averages took the whole link's time, where the plan counts what nothing hides; the link in
    the file is the real one."""
    run = {"gpus": 16, "global_batch": 32, "seq": 1024, "layers": 8, "tp": 2, "pp": 2, "dp": 4}
    fixed = {"micro_batch": 1, "recompute": "none", "time_limit": 10.0}
    found = plan("llama-3-8b", "H100", **run, **fixed, **how)
    found.write(tmp_path)
    document = json.loads((tmp_path / "schedule.json").read_text())
    report, step = document["report"], found.best.step
    assert report["makespan"] < report["iteration_time"] < found.best.step_ms
    assert report["iteration_time"] + step.stepping == pytest.approx(found.best.step_ms, rel=1e-9)
    assert report["lower_bound"] <= report["makespan"]
    assert found.lower_bound <= found.best.step_ms * (1 + 1e-9)
    assert verify_schedule(document) == []
    replicas = document["profile"]["data_parallel"]
    link = step.replica_link
    assert (replicas.pop("exposed") < 1) == (how.get("sharding") != "fsdp")
    assert replicas == {"size": 4} | asdict(link)


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_a_matrix_that_embedding_and_head_share_is_known_to_the_files(
    pipeloom: Command, tmp_path: Path, tied: bool, pp: int
) -> None:
    run = {"gpus": 2, "pp": pp, "global_batch": 4, "seq": 128, "schedule": "1f1b"}
    found = plan(SMALL | {"tie_word_embeddings": tied}, "H100", **run, time_limit=5.0)
    told = found.write(tmp_path)
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert profile.get("tied", []) == ([[0, 1]] if tied and pp == 2 else [])
    flags = (tmp_path / "megatron.txt.flags").read_text().split()
    assert flags.count("--untie-embeddings-and-output-weights") == (not tied)
    assert "untie" not in str(told)
    assert pipeloom("verify", tmp_path / "schedule.json").code == 0
    assert pipeloom("verify", tmp_path / "program.json").code == 0


def test_the_command_of_a_model_from_standard_input_can_be_run(
    pipeloom: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: object) -> str:
        with config.open() as text:
            monkeypatch.setattr("sys.stdin", text)
            return pipeloom(*words).out

    planned = run("plan", "-", *WORDS[2:], "--schedule", "1f1b")
    line = planned.partition("this plan by predict:\n")[2].splitlines()[0]
    assert "a step, likely" in run(*shlex.split(line)[1:])
