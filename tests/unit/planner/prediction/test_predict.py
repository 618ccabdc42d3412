"""Predictions: what the contract says they hold, and that the simulated schedule is behind them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from tests.support.inner import DataParallel, Setup, StepTimes, preset, read_cluster, read_rows

RUN: dict[str, Any] = {"gpu": "H100", "tp": 2, "pp": 4, "gpus": 16, "global_batch": 32, "seq": 4096}
PUBLISHED = Path(__file__).parents[4] / "benchmarks" / "predict" / "published.json"


def predict(**changes: Any) -> pipeloom.Prediction:
    return pipeloom.predict("llama-3-8b", **RUN | changes)


def test_result_has_the_keys_of_the_contract() -> None:
    found = predict().to_dict()
    assert {
        *("step_ms", "step_ms_low", "step_ms_high", "tokens_per_s_per_gpu"),
        *("model_tflops_per_gpu", "mfu", "memory_gib", "memory", "profile", "communication"),
        "notes",
    } == set(found)
    assert found["step_ms_low"] < found["step_ms"] < found["step_ms_high"]
    assert 0.1 < found["mfu"] < 1
    assert found["memory_gib"] == max(rank["total"] for rank in found["memory"])
    assert [rank["stages"] for rank in found["memory"]] == [[0], [1], [2], [3]]
    assert set(found["communication"]) == {"tp", "dp", "pp"}
    assert all(0 <= x["exposed_ms"] <= x["total_ms"] for x in found["communication"].values())
    json.dumps(found, allow_nan=False)


def test_step_is_the_simulated_schedule_and_what_follows_it() -> None:
    found = predict(dp=1, gpus=8)
    schedule = pipeloom.build("1f1b", found.profile, 32, objective="makespan")
    makespan = schedule.known_timing.makespan
    end = max(end.optimizer for end in found.step.ends)
    assert found.step_ms == pytest.approx(makespan + end + found.step.cluster.efficiency.step_ms)
    assert found.schedule.order[0].tolist() == schedule.order[0].tolist()


def test_schedules_differ_as_their_bubbles_do() -> None:
    plain = predict(global_batch=16)
    times = [plain.step_ms] + [
        predict(global_batch=16, **change).step_ms
        for change in ({"vp": 2}, {"schedule": "zb-h1"}, {"schedule": "optimal"})
    ]
    assert times[0] > times[1]
    assert times[0] > times[2] > times[3]


def test_full_recomputation_trades_time_for_memory() -> None:
    none, full = predict(), predict(recompute="full")
    assert 1.1 < full.step_ms / none.step_ms < 1.4
    held = [sum(rank.bytes["activations"] for rank in found.memory) for found in (none, full)]
    assert held[1] < 0.2 * held[0]
    assert full.model_tflops_per_gpu < none.model_tflops_per_gpu


def test_model_flops_are_the_published_formula() -> None:
    model = {"hidden_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 64}
    words = {"vocab_size": 51200, "mlp": "gelu-4h", "positions": 2048}
    run = {"tp": 8, "gpus": 8, "micro_batch": 4, "seq": 2048}
    setup = Setup.of(model | words, run, preset("A100"))
    parts = 1 + 2048 / (6 * 6144) + 51200 / (12 * 6144 * 48)
    assert setup.model_flops == pytest.approx(72 * 4 * 48 * 2048 * 6144**2 * parts, rel=1e-3)


def test_sharding_and_messages() -> None:
    one, sharded = predict(tp=1, pp=1, gpus=8), predict(tp=1, pp=1, gpus=8, sharding="fsdp")
    assert sharded.memory[0].bytes["optimizer"] < one.memory[0].bytes["optimizer"] / 7
    assert sharded.communication["dp"].total > one.communication["dp"].total
    slow = replace(preset("H100"), between=replace(preset("H100").between, latency=5.0))
    assert predict(cluster=slow, gpu=None).communication["pp"].exposed > 10


def test_measured_layers_take_the_place_of_calculated_ones(tmp_path: Path) -> None:
    layer: dict[str, Any] = {
        "t_f": 1.0,
        "t_b": 1.0,
        "t_w": 1.0,
        "m_b": 2.0**30,
        "m_w": 0.0,
        "activation_bytes": 0,
    }
    names = ["embedding", *(f"layers.{i}" for i in range(32)), "head"]
    document = {"format": "pipeloom.profile", "version": 1, "ranks": 1}
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(document | {"layers": [{"name": n, **layer} for n in names]}))
    found = predict(measured=path)
    assert [stage.t_f for stage in found.profile.stages] == [9.0, 8.0, 8.0, 9.0]
    assert found.memory[0].bytes["activations"] == 4 * 9 * 2**30
    again = {"t_r": 0.75, "m_r": 2.0**20}
    path.write_text(
        json.dumps(document | {"layers": [{"name": n, **layer, **again} for n in names]})
    )
    full = predict(measured=path, recompute="full")
    assert [stage.t_b for stage in full.profile.stages] == [1.75 * n for n in (9, 8, 8, 9)]
    assert full.memory[0].bytes["activations"] == 4 * 9 * 2**20


def test_published_runs_are_predicted_by_the_shipped_calibration() -> None:
    """A sample of what ``python -m benchmarks predict`` holds in full against measurements."""
    document = json.loads(PUBLISHED.read_text())
    document["vtrain"]["rows"] = document["vtrain"]["rows"][::40]
    off = []
    for row in read_rows(document):
        if row.source != "vtrain":
            continue
        cluster = read_cluster("A100-80GB")
        off.append(abs(StepTimes(row.setup, cluster).time / row.step_ms - 1))
    assert len(off) > 15
    assert sorted(off)[len(off) // 2] < 0.02
    assert max(off) < 0.1


SCHEDULES = {
    **dict.fromkeys(("gpipe", "1f1b", "dapple", "zb-h1", "zb-h2"), 1),
    **dict.fromkeys(("zb-v", "v-half", "v-min", "dualpipev", "wave", "interleaved-1f1b"), 2),
}


@pytest.mark.parametrize("family", SCHEDULES)
def test_memory_is_that_of_the_family_built_for_the_profile(family: str) -> None:
    found = predict(schedule=family, vp=SCHEDULES[family])
    count = found.step.setup.run.microbatches
    built = pipeloom.build(family, found.step.profile, count, memory_limit=float("inf"))
    held = [rank.bytes["activations"] for rank in found.memory]
    assert held == pytest.approx(list(built.known_timing.peak_memory))


def test_what_waits_for_w_is_held_in_full() -> None:
    fused, split = (predict(recompute="full", schedule=name) for name in ("1f1b", "zb-h1"))
    waiting = [sum(work.m_w for work in works) for works in split.step.setup.work.stages]
    assert waiting[0] > sum(work.m_b for work in split.step.setup.work.stages[0])
    for found in (fused, split):  # whatever schedule -o's profile is given to
        assert [stage.m_w for stage in found.profile.stages] == pytest.approx(waiting)
        assert all(stage.m_w <= stage.m_b for stage in found.profile.stages)
        assert "M_B is raised to M_W on stages 0 to 3:" in str(found)
    held = [found.memory[0].bytes["activations"] for found in (fused, split)]
    assert held[0] < 0.2 * held[1]
    assert held[1] == pytest.approx(4 * waiting[0])
    assert predict(tp=1, dp=4).to_dict()["notes"] == []
    assert len(split.to_dict()["notes"]) == 1
    assert "max_position_embeddings" in str(predict(tp=1, dp=4, seq=2**18))


def test_optimal_fits_where_something_does() -> None:
    """An allocator that takes a third more: what it takes of more activations counts too."""
    h100 = preset("H100")
    greedy = replace(h100.efficiency, fragmentation=0.3, context_gib=4.0)
    model = {"model_type": "llama", "num_hidden_layers": 32, "vocab_size": 128256}
    small = replace(h100, gpu=replace(h100.gpu, memory_gib=64.0), efficiency=greedy)
    plain, best = (
        pipeloom.predict(model, cluster=small, gpus=4, pp=4, schedule=name)
        for name in ("1f1b", "optimal")
    )
    assert best.step_ms <= plain.step_ms
    assert max(rank.total for rank in plain.memory) < 64.0 * 2**30
    assert max(rank.total for rank in best.memory) <= 64.0 * 2**30


def test_optimal_places_stages_where_they_do_best() -> None:
    run: dict[str, Any] = {"gpu": "H100", "gpus": 16, "pp": 2, "vp": 2, "micro_batch": 2}
    run |= {"global_batch": 64, "sharding": "zero1", "layers_per_stage": "7,8,9,8"}
    found = pipeloom.predict("llama-3-8b", **run, schedule="optimal")
    assert found.schedule.problem.placement.name == "v"
    assert found.step_ms < pipeloom.predict("llama-3-8b", **run, schedule="wave").step_ms
    assert "the best schedule found, v" in str(found)


def test_windows_leave_no_more_than_the_peak() -> None:
    model = {"model_type": "mistral", "num_hidden_layers": 4, "sliding_window": 512}
    run: dict[str, Any] = {"gpu": "H100", "seq": 65536}
    near = pipeloom.predict(model, **run)
    far = pipeloom.predict(model | {"sliding_window": None}, **run)
    assert near.mfu < 1
    assert near.step.setup.model_flops < 0.5 * far.step.setup.model_flops


@pytest.mark.parametrize("name", ["RTX 4090", "rtx4090", "rtx_4090", "4090"])
def test_names_of_gpus_are_met_as_people_write_them(name: str) -> None:
    assert predict(gpu=name).step.cluster.gpu.name == "RTX-4090"
    assert predict(gpu="V100", precision="fp16").step.kernels.peak == 125


def test_a_plans_profile_averages_over_all_cards_of_a_node() -> None:
    """Of each node four tensor parallel pairs are replicas; an all-reduce of as many bytes."""
    found = predict(gpus=64, pp=2, global_batch=64)
    setup = found.step.setup
    held = max(rank.bytes["gradients"] for rank in found.memory)
    averaging = DataParallel(setup.run.dp, replace(found.step.replica_link, latency=0.0))
    assert setup.run.dp == 16
    assert averaging.time(held) == pytest.approx(found.communication["dp"].total, rel=0.01)


def test_one_replica_gathers_nothing() -> None:
    alone = predict(dp=1, gpus=8, sharding="fsdp")
    assert alone.memory[0].bytes["gathered"] == 0
    assert alone.memory[0].total == pytest.approx(predict(dp=1, gpus=8).memory[0].total)
    assert predict(sharding="fsdp").memory[0].bytes["gathered"] > 0


def test_optimal_is_the_family_where_nothing_else_is_known_to_fit() -> None:
    h100 = preset("H100")
    small = replace(h100, gpu=replace(h100.gpu, memory_gib=50.0))
    run: dict[str, Any] = {"gpus": 4, "pp": 4, "recompute": "full", "seq": 8192, "global_batch": 8}
    plain, best = (
        pipeloom.predict("llama-3-8b", cluster=small, **run, schedule=name)
        for name in ("1f1b", "optimal")
    )
    assert best.step_ms == plain.step_ms
    assert best.memory_gib == plain.memory_gib < 50
