"""Predictions: the values that the contract requires, consistent with the simulated schedule."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import pipeloom
from pipeloom.planner import preset

RUN: dict[str, Any] = {"gpu": "H100", "tp": 2, "pp": 4, "gpus": 16, "global_batch": 32, "seq": 4096}
PUBLISHED = Path(__file__).parents[4] / "benchmarks" / "predict" / "published.json"
H100 = preset("H100")


@cache
def predict(**changes: Any) -> pipeloom.Prediction:
    return pipeloom.predict("llama-3-8b", **RUN | changes)


def changed(given: Any, **changes: Any) -> Any:
    return given.model_copy(update=changes)


def held(found: pipeloom.Prediction, kind: str = "activations") -> list[float]:
    return [rank.bytes[kind] for rank in found.memory]


def test_result_has_the_keys_of_the_contract() -> None:
    found = predict().to_dict()
    assert {
        *("step_ms", "step_ms_low", "step_ms_high", "tokens_per_s_per_gpu"),
        *("model_tflops_per_gpu", "mfu", "memory_gib", "memory", "profile", "communication"),
        "notes",
    } == set(found)
    assert found["step_ms_low"] < found["step_ms"] < found["step_ms_high"]
    assert found["tokens_per_s_per_gpu"] == pytest.approx(32 * 4096 / 16 / found["step_ms"] * 1e3)
    assert found["mfu"] == pytest.approx(found["model_tflops_per_gpu"] / 989)
    assert found["memory_gib"] == max(rank["total"] for rank in found["memory"])
    assert [rank["stages"] for rank in found["memory"]] == [[0], [1], [2], [3]]
    assert set(found["communication"]) == {"tp", "dp", "pp"}
    assert all(0 <= x["exposed_ms"] <= x["total_ms"] for x in found["communication"].values())
    json.dumps(found, allow_nan=False)


def test_step_is_the_simulated_schedule_and_what_follows_it() -> None:
    found = predict(dp=1, gpus=8)
    schedule = pipeloom.build("1f1b", found.profile, 32, objective="makespan")
    makespan = schedule.known_timing.makespan
    assert found.step_ms == pytest.approx(makespan + found.step.stepping)
    assert found.schedule.order[0].tolist() == schedule.order[0].tolist()


def test_model_flops_are_the_published_formula_and_those_of_windows_fewer() -> None:
    sizes = {"hidden_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 64}
    words = {"vocab_size": 51200, "mlp": "gelu-4h", "positions": 2048}
    run = {"gpu": "A100", "tp": 8, "gpus": 8, "micro_batch": 4, "seq": 2048}
    found = pipeloom.predict(sizes | words, **run)
    parts = 1 + 2048 / (6 * 6144) + 51200 / (12 * 6144 * 48)
    flops = 72 * 4 * 48 * 2048 * 6144**2 * parts
    assert found.model_tflops_per_gpu * 8 * found.step_ms * 1e9 == pytest.approx(flops, rel=1e-3)
    model = {"model_type": "mistral", "num_hidden_layers": 4}
    near, far = (
        pipeloom.predict(model | {"sliding_window": window}, gpu="H100", seq=65536)
        for window in (512, None)
    )
    assert near.mfu < 1
    work = [found.model_tflops_per_gpu * found.step_ms for found in (near, far)]
    assert work[0] < 0.5 * work[1]


def test_sharding_and_messages() -> None:
    alone = {"tp": 1, "pp": 1, "gpus": 8}
    none, zero1, fsdp = (predict(**alone, sharding=x) for x in ("none", "zero1", "fsdp"))
    assert held(fsdp, "optimizer")[0] == pytest.approx(held(none, "optimizer")[0] / 12)  # 8 of 12
    assert held(zero1, "optimizer")[0] == pytest.approx(held(none, "optimizer")[0] / 8)
    sent = [found.step.communication["dp"].total for found in (none, zero1, fsdp)]
    # an all-reduce of gradients in float32, or half of it and an all-gather of weights in two bytes
    assert sent[1] / sent[0] == pytest.approx(6 / 8, rel=0.01)
    assert sent[2] > sent[0]
    slow = changed(H100, between=changed(H100.between, latency=5.0))
    assert predict(cluster=slow, gpu=None).step.communication["pp"].exposed > 10
    one, same = predict(dp=1, gpus=8, sharding="fsdp"), predict(dp=1, gpus=8)
    assert held(one, "gathered") == [0] * 4
    assert one.memory_gib == pytest.approx(same.memory_gib)
    assert min(held(predict(sharding="fsdp"), "gathered")) > 0


def test_published_runs_are_predicted_by_the_shipped_calibration() -> None:
    """A sample of the comparison with measurements in ``python -m benchmarks predict``."""
    document = json.loads(PUBLISHED.read_text())
    given = {"gpu": "A100-80GB", "seq": 1024, "precision": "fp16", "recompute": "full"}
    off = []
    for row in document["vtrain"]["rows"][::40]:
        run = dict(zip(document["vtrain"]["columns"], row, strict=True))
        name, measured = run.pop("model"), run.pop("step_ms")
        model = document["models"].get(name, name)
        off.append(abs(pipeloom.predict(model, **given, **run).step_ms / measured - 1))
    assert median(off) < 0.02
    assert max(off) < 0.1


SCHEDULES = {
    **dict.fromkeys(("gpipe", "1f1b", "dapple", "zb-h1", "zb-h2"), 1),
    **dict.fromkeys(("zb-v", "v-half", "v-min", "dualpipev", "wave", "interleaved-1f1b"), 2),
}


@pytest.mark.parametrize("family", SCHEDULES)
def test_memory_is_that_of_the_family_built_for_the_profile(family: str) -> None:
    found = predict(schedule=family, vp=SCHEDULES[family])
    built = pipeloom.build(family, found.step.profile, 16, memory_limit=math.inf)
    assert held(found) == pytest.approx([*built.known_timing.peak_memory])


def test_what_waits_for_w_is_held_in_full() -> None:
    fused, split = (predict(recompute="full", schedule=name) for name in ("1f1b", "zb-h1"))
    waiting = [sum(work.m_w for work in works) for works in split.step.setup.work.stages]
    for found in (fused, split):  # for every schedule of the profile that -o writes
        assert [stage.m_w for stage in found.profile.stages] == pytest.approx(waiting)
        assert all(stage.m_w <= stage.m_b for stage in found.profile.stages)
        assert found.notes == ()
    assert held(fused)[0] < 0.2 * held(split)[0]
    assert held(split)[0] == pytest.approx(4 * waiting[0])
    assert predict(tp=1, dp=4).notes == ()
    assert "max_position_embeddings" in str(predict(tp=1, dp=4, seq=2**18))
