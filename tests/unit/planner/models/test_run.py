"""Runs: defaults, and one line for each fault."""

from __future__ import annotations

from typing import Any

from tests.support.inner import TrainingRun, read_model

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
