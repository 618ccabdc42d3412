"""Invariants of a layer's work: what dividing it leaves, what recomputing moves."""

from __future__ import annotations

from typing import Any

import pytest

from pipeloom.planner.models.work import LayerWork
from tests.support.inner import (
    Attention,
    Collective,
    CollectiveKind,
    Gemm,
    Group,
    OpKind,
    TrainingRun,
    read_model,
    work_of,
)

F, B, W, R = OpKind.F, OpKind.B, OpKind.W, OpKind.R
DEGREES: tuple[dict[str, int], ...] = (
    {"tp": 2},
    {"tp": 8},
    {"cp": 4},
    {"tp": 4, "cp": 2},
    {"tp": 2, "cp": 2, "dp": 2, "sequence_parallel": False},
)
EXPERT_DEGREES: tuple[dict[str, int], ...] = (
    {"ep": 8, "dp": 8},
    {"tp": 2},
    {"tp": 2, "ep": 4, "dp": 4},
    {"tp": 4, "ep": 8, "etp": 1, "dp": 2},
)


def layer_of(preset: str, **keys: Any) -> LayerWork:
    """The last decoder layer."""
    model = read_model(preset)
    work = work_of(model, TrainingRun.of(keys, model))
    return work.layers[-2 - model.mtp]


def gemm_flops(layer: LayerWork, op: OpKind) -> float:
    return sum(kernel.flops for kernel in layer.of(op) if isinstance(kernel, Gemm))


@pytest.mark.parametrize("degrees", DEGREES)
def test_a_dense_layer_is_divided_without_a_rest(degrees: dict[str, int]) -> None:
    whole, part = layer_of("llama-3-70b"), layer_of("llama-3-70b", **degrees)
    ranks = degrees.get("tp", 1) * degrees.get("cp", 1)
    for op in (F, B, W):
        assert part.flops(op) * ranks == pytest.approx(whole.flops(op))
    norms = 2 * 8192
    divided = (whole.parameters.dense - norms) / degrees.get("tp", 1)
    assert part.parameters.dense == pytest.approx(divided + norms)
    assert part.parameters.total == whole.parameters.total


@pytest.mark.parametrize("degrees", EXPERT_DEGREES)
def test_experts_are_divided_without_a_rest(degrees: dict[str, int]) -> None:
    """With as many tokens on each rank of a tensor parallel group as sequence parallelism leaves
    it, a rank of an expert parallel group computes its share of the group's tokens."""
    whole, part = layer_of("mixtral-8x7b"), layer_of("mixtral-8x7b", **degrees)
    tp = degrees.get("tp", 1)
    for op in (F, B, W):
        assert gemm_flops(part, op) * tp == pytest.approx(gemm_flops(whole, op))
    split = degrees.get("ep", 1) * degrees.get("etp", tp)
    assert part.parameters.expert * split == whole.parameters.expert == 8 * 3 * 4096 * 14336


def test_experts_exchange_each_tokens_copies() -> None:
    layer = layer_of("mixtral-8x7b", ep=8, dp=8, seq=1024)
    sent = [k for k in layer.kernels if isinstance(k, Collective)]
    assert {(k.kind, k.group, k.size) for k in sent} == {(CollectiveKind.ALL_TO_ALL, Group.EP, 8)}
    assert [k.op for k in sent] == [F, F, B, B]
    assert {k.bytes for k in sent} == {1024 * 2 * 4096 * 2}
    assert sent[0].wire_bytes == sent[0].bytes * 7 / 8


def test_expert_products_are_grouped() -> None:
    grouped = [k for k in layer_of("qwen3-30b-a3b", seq=4096).of(F) if "experts" in k.name]
    first = next(k for k in grouped if isinstance(k, Gemm))
    assert (first.count, first.m, first.n, first.k) == (128, 4096 * 8 / 128, 2 * 768, 2048)


def test_keys_and_values_go_around_the_ring() -> None:
    layer = layer_of("llama-3-8b", cp=4, seq=8192)
    sent = [k for k in layer.kernels if isinstance(k, Collective)]
    keys_and_values = 2 * 2048 * 8 * 128 * 2  # both, of 2,048 tokens, 8 heads of 128, two bytes
    assert [(k.op, k.group, k.bytes, k.count) for k in sent] == [
        (F, Group.CP, keys_and_values, 3),
        (B, Group.CP, 2 * keys_and_values, 3),
    ]


def test_full_recomputation_runs_the_forward_again_and_keeps_the_input() -> None:
    plain, full = layer_of("llama-3-8b"), layer_of("llama-3-8b", recompute="full")
    assert full.flops(R) == full.flops(F) == plain.flops(F)
    assert full.m_b == 2 * 4096 * 4096
    assert full.m_b + full.m_r == plain.m_b
    assert full.m_w == plain.m_w


MODULES = {
    "core_attn": "llama-3-8b",
    "layernorm": "llama-3-8b",
    "mlp": "llama-3-8b",
    "moe": "mixtral-8x7b",
    "moe_act": "mixtral-8x7b",
    "shared_experts": "qwen1.5-moe-a2.7b",
    "mla_up_proj": "deepseek-v3",
}


@pytest.mark.parametrize("module", MODULES)
def test_recomputing_a_module_brings_back_what_it_drops(module: str) -> None:
    plain, again = (layer_of(MODULES[module], recompute=each) for each in ("none", module))
    assert again.m_r > 0
    assert again.m_b + again.m_r == pytest.approx(plain.m_b)
    assert [k.name for k in again.of(F)] == [k.name for k in plain.of(F)]
    assert 0 < len([*again.of(R)]) < len([*again.of(F)])


def test_recomputing_the_experts_activation_runs_no_product_again() -> None:
    layer = layer_of("mixtral-8x7b", recompute="moe_act")
    assert layer.flops(R) == 0
    assert layer.bytes_moved(R) > 0


def test_a_window_bounds_the_pairs_of_attention() -> None:
    model = read_model("gemma-2-9b")
    near, far = work_of(model, TrainingRun.of({"seq": 8192}, model)).layers[1:3]
    flops = [next(k for k in x.of(F) if isinstance(k, Attention)).flops for x in (near, far)]
    pairs = (4096 * 8192 - 4096**2 / 2, 8192**2 / 2)
    assert flops == [2 * 16 * 2 * 256 * each for each in pairs]


def test_latent_attention_holds_low_ranks_where_its_products_up_are_recomputed() -> None:
    """q, k and v of 128 heads are most of what MLA holds."""
    plain, again = (layer_of("deepseek-v3", recompute=x) for x in ("none", "mla_up_proj"))
    assert plain.m_b - again.m_b == 4096 * 128 * (192 + 192 + 128) * 2


def test_multi_token_prediction_is_a_layer_a_projection_and_a_head() -> None:
    model = read_model("deepseek-v3")
    *_, moe, mtp, head = work_of(model, TrainingRun.of({}, model)).layers
    projection = 2 * 2 * 4096 * 7168**2
    assert mtp.flops(F) == pytest.approx(moe.flops(F) + projection + head.flops(F))
    assert mtp.parameters.total == moe.parameters.total + 2 * 7168**2 + 3 * 7168
    assert mtp.parameters.tied == 0


@pytest.mark.parametrize(("pp", "copy"), [(1, 0), (2, 1)])
def test_a_tied_matrix_is_held_twice_where_its_layers_are_on_two_ranks(pp: int, copy: int) -> None:
    model = read_model("gpt-22b")
    embedding, *_, head = work_of(model, TrainingRun.of({"pp": pp, "tp": 2}, model)).layers
    assert head.parameters.tied == copy * 51200 * 6144 / 2
    assert embedding.parameters.tied == 0


def test_a_fused_loss_holds_logits_of_two_bytes() -> None:
    model = read_model("llama-3-8b")
    plain, fused = (
        work_of(model, TrainingRun.of({"fused_cross_entropy": each}, model)).layers[-1]
        for each in (False, True)
    )
    logits = 4096 * 128256
    assert plain.m_b - fused.m_b == 2 * logits
    assert (plain.workspace, fused.workspace) == (2 * logits, 0)
    assert fused.bytes_moved(F) < plain.bytes_moved(F)


def test_stages_have_the_ends_with_the_first_and_the_last() -> None:
    model = read_model("opt-350m")
    work = work_of(model, TrainingRun.of({"pp": 4, "layers_per_stage": "5,7,7,7"}, model))
    assert [len(stage) for stage in work.stages] == [5, 7, 7, 7]
    assert work.stages[0][0].kind == "embedding"
    assert work.stages[-1][-1].kind == "head"


def test_backward_runs_in_the_reverse_order() -> None:
    layer = layer_of("llama-3-8b")
    forward = [k.name for k in layer.of(F) if isinstance(k, Gemm)]
    for op in (B, W):
        assert [k.name for k in layer.of(op) if isinstance(k, Gemm)] == forward[::-1]
