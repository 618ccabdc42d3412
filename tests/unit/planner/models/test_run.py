"""Runs: defaults, and one line for each fault."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pipeloom.ir.errors import InputError
from pipeloom.planner.models.reading import read_model
from pipeloom.planner.models.run import TrainingRun
from pipeloom.planner.models.work import Group

LLAMA, MIXTRAL = read_model("llama-2-70b"), read_model("mixtral-8x7b")


def test_what_is_absent_follows_from_the_rest() -> None:
    run = TrainingRun.of({"gpus": 64, "tp": 4, "pp": 4}, LLAMA)
    assert (run.dp, run.vp, run.cp, run.ep, run.etp) == (4, 1, 1, 1, 4)
    assert (run.seq, run.micro_batch, run.global_batch, run.microbatches) == (4096, 1, 64, 16)
    assert (run.sequence_parallel, run.schedule, run.layers) == (True, "1f1b", 80)
    assert run.layers_by_stage == (20, 20, 20, 20)


def test_words_of_published_measurements_are_read() -> None:
    """What is not stated takes defaults; of an interleaved schedule the fewest stages a rank."""
    given: dict[str, Any] = {
        "gpus": 96,
        "tp": 8,
        "pp": 12,
        "vp": "interleaved, not stated",
        "precision": "FP8-CS",
    }
    run = TrainingRun.of(
        given | {"recompute": "not stated", "sharding": None}, read_model("gpt-175b")
    )
    assert (run.vp, run.schedule, run.precision, run.recompute) == (
        2,
        "interleaved-1f1b",
        "fp8",
        frozenset(),
    )
    assert TrainingRun.of({"layers_per_stage": "82"}, LLAMA).layers_by_stage == (80,)
    assert TrainingRun.of({"recompute": "mlp, layernorm"}, LLAMA).recompute == {"mlp", "layernorm"}
    local = TrainingRun.of({"dp": 8, "local_batch": 2}, LLAMA)
    assert (local.micro_batch, local.global_batch) == (2, 16)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"micro_bach": 2}, "micro_bach: unknown key; did you mean micro_batch?"),
    ({"wings": 2}, "wings: unknown key; known: gpu, gpus, tp"),
    ({"tp": 0}, "tp: expected a whole number >= 1, got 0"),
    ({"tp": 1.5}, "tp: expected a whole number >= 1, got 1.5"),
    ({"tp": float("inf")}, "tp: expected a whole number >= 1, got inf"),
    ({"seq": float("nan")}, "seq: expected a whole number >= 1, got nan"),
    ({"micro_batch": 10**30}, "micro_batch: expected a whole number >= 1, got 1000000"),
    ({"recompute": [["mlp"]]}, "recompute: expected none, selective, full, or some of"),
    ({"recompute": 3}, "recompute: expected none, selective, full, or some of"),
    ({"layers_per_stage": [[1]]}, "layers_per_stage: expected whole numbers >= 0, one a stage"),
    ({"pp": True}, "pp: expected a whole number >= 1, got True"),
    ({"tp": 3}, "tp: expected a divisor of the 64 heads, got 3"),
    ({"gpus": 10, "tp": 4}, "gpus: expected tp x pp x cp x dp = 4 x 1 x 1 x 2 = 8, got 10"),
    ({"vp": 2}, "vp: expected 1 where pp is 1, got 2"),
    ({"pp": 81}, "pp: expected at most one stage a layer, pp x vp <= 80 layers, got 81"),
    ({"ep": 2}, "ep: expected 1, llama-2-70b has no experts, got 2"),
    ({"tp": 8, "seq": 4095}, "seq: expected a multiple of cp x tp = 8, got 4095"),
    ({"dp": 2, "global_batch": 3}, "global_batch: expected a multiple of dp x micro_batch"),
    ({"recompute": "some"}, "recompute: expected none, selective, full, or some of core_attn"),
    ({"recompute": "moe"}, "recompute: moe: llama-2-70b has none"),
    ({"precision": "int3"}, "precision: expected one of fp32, bf16, fp16, fp8, mxfp8, nvfp4"),
    ({"sequence_parallel": "yes"}, "sequence_parallel: expected true or false, got 'yes'"),
    ({"sequence_parallel": True}, "sequence_parallel: expected false where tp is 1, got true"),
    ({"pp": 2, "layers_per_stage": "0,82"}, "layers_per_stage: expected 2 numbers that sum to 80"),
    ({"pp": 2, "layers_per_stage": "40,41"}, "layers_per_stage: expected 2 numbers that sum to 80"),
    ({"layers": 81}, "layers: expected at most the model's 80, got 81"),
    ({"cp": 2, "attention": "unfused"}, "attention: expected flash where cp is 2, got unfused"),
]


@pytest.mark.parametrize(("given", "line"), FAULTS, ids=[str(given) for given, _ in FAULTS])
def test_a_fault_is_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)) as caught:
        TrainingRun.of(given, LLAMA)
    assert len(caught.value.errors) == 1


def test_experts_divide() -> None:
    with pytest.raises(InputError, match="ep: expected a divisor of the 8 experts, got 3"):
        TrainingRun.of({"ep": 3, "dp": 3}, MIXTRAL)
    with pytest.raises(InputError, match="ep: expected ep x etp to divide tp x cp x dp = 4, got 8"):
        TrainingRun.of({"ep": 8, "dp": 4}, MIXTRAL)
    with pytest.raises(InputError, match="sequence_parallel: expected true where mixtral-8x7b has"):
        TrainingRun.of({"tp": 2, "sequence_parallel": False}, MIXTRAL)


def test_groups_are_words() -> None:
    assert {*Group} == {"tp", "cp", "ep", "etp", "dp", "edp", "pp"}
