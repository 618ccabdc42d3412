"""The work of layers: exact published formulas; the effects of parallelism and recomputation."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

import pipeloom
from pipeloom.ir import OpKind
from pipeloom.planner import ModelWork

F, B, W, R = OpKind.F, OpKind.B, OpKind.W, OpKind.R
S, H, A, LAYERS, V = 2048, 12288, 96, 96, 51200  # GPT-3
GPT_3 = {"seq": S, "precision": "fp16", "attention": "unfused"}


def work(model: Any, **run: Any) -> ModelWork:
    return pipeloom.arithmetic(model, **{"gradients": "fp32"} | run).work


def gpt_3(**run: Any) -> ModelWork:
    return work("gpt-175b", **{"sequence_parallel": run.get("tp", 1) > 1} | GPT_3 | run)


def layer_of(model: str, **run: Any) -> Any:
    """The last decoder layer."""
    return [x for x in work(model, **run).layers if x.kind in ("dense", "moe")][-1]


def collectives(layer: Any) -> list[Any]:
    return [kernel for kernel in layer.kernels if hasattr(kernel, "group")]


def products(layer: Any, op: OpKind) -> list[Any]:
    return [kernel for kernel in layer.of(op) if hasattr(kernel, "n")]


def flops(found: ModelWork, *ops: OpKind) -> float:
    return sum(layer.flops(op) for layer in found.layers for op in ops)


def activation_bytes(b: int, t: int, divided: bool, recompute: str) -> float:
    """The activation memory of a GPT layer with dropout: s b h (34 + 5 a s / h), or 2 s b h with
    full recomputation. Without sequence parallelism, 10 s b h of it are on each of t ranks
    (Korthikanti et al., 2022, equations 1 to 5, table 2)."""
    if recompute == "full":
        return 2 * S * b * H / (t if divided else 1)
    alone, shared = (0, 34) if divided else (10, 24)
    pairs = 5 * A * S / H if recompute == "none" else 0
    return S * b * H * (alone + (shared + pairs) / t)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("t", "divided"), [(1, False), (8, False), (8, True)])
def test_activations_of_a_layer_are_korthikantis(recompute: str, t: int, divided: bool) -> None:
    for b in (1, 4):
        found = gpt_3(tp=t, sequence_parallel=divided, recompute=recompute, micro_batch=b)
        assert found.layers[1].m_b == activation_bytes(b, t, divided, recompute)


def test_ends_attention_kernels_and_what_waits_for_w() -> None:
    """Section 4.3: the embedding's dropout mask, norm, head and loss. Flash attention holds one
    number per row. 32 of 34 s b h are held for W (Qi et al., 2024)."""
    for t in (1, 8):
        embedding, *_, head = gpt_3(tp=t, micro_batch=2).layers
        assert embedding.m_b == S * 2 * H / t
        assert head.m_b == 4 * S * 2 * H / t * (1 + V / H)
    assert gpt_3(attention="flash").layers[1].m_b == 34 * S * H + 4 * A * S
    layer = gpt_3(recompute="selective").layers[1]
    assert (layer.m_b, layer.m_w) == (34 * S * H, 32 * S * H)


def test_flops_and_parameters_are_those_of_the_papers() -> None:
    """72 B l s h^2 (1 + s / 6h + v / 12hl) FLOPs (Korthikanti et al., appendix A); with
    recomputation 96 B s l h^2 (1 + s / 6h + v / 16lh) FLOPs, and 12 l h^2 (1 + 13 / 12h + (v + s) /
    12lh) parameters (Narayanan et al., 2021, equations 3 and 2), plus the last norm's 2 h."""
    once = 72 * LAYERS * S * H**2 * (1 + S / (6 * H) + V / (12 * H * LAYERS))
    assert flops(gpt_3(), F, B, W) == pytest.approx(once, rel=1e-12)
    again = 96 * LAYERS * S * H**2 * (1 + S / (6 * H) + V / (16 * LAYERS * H))
    assert flops(gpt_3(recompute="full"), *OpKind) == pytest.approx(again, rel=1e-12)
    found = sum(layer.parameters.total for layer in gpt_3().layers)
    assert found == 12 * LAYERS * H**2 + 13 * LAYERS * H + (V + S) * H + 2 * H


def test_tensor_parallel_collectives_of_a_layer_are_megatrons() -> None:
    """Two all-reduces in each direction (Shoeybi et al., 2019, figure 4). With sequence parallelism
    the same number of bytes, and for W another all-gather of each half's input (Korthikanti et al.,
    section 4.2.2)."""
    one = 2 * S * H * 7 / 8  # bytes that leave a rank in an all-gather or reduce-scatter
    for divided, expected in ((False, [4, 4, 0]), (True, [4, 4, 2])):
        sent = collectives(gpt_3(tp=8, sequence_parallel=divided).layers[1])
        found = [sum(each.wire_bytes for each in sent if each.op is op) for op in (F, B, W)]
        assert found == [one * each for each in expected]


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("llama-3-70b", {"tp": 8}),
        ("llama-3-70b", {"cp": 4}),
        ("llama-3-70b", {"tp": 2, "cp": 2, "dp": 2, "sequence_parallel": False}),
        ("mixtral-8x7b", {"tp": 2}),
        ("mixtral-8x7b", {"tp": 2, "ep": 4, "dp": 4}),
        ("mixtral-8x7b", {"tp": 4, "ep": 8, "etp": 1, "dp": 2}),
    ],
)
def test_a_layer_is_divided_without_a_rest(model: str, degrees: dict[str, int]) -> None:
    """If each tensor parallel rank has the tokens that sequence parallelism leaves it, a rank of an
    expert parallel group computes its share of the group's tokens."""
    whole, part = layer_of(model), layer_of(model, **degrees)
    tp, on_all = degrees.get("tp", 1), {"llama-3-70b": 2 * 8192, "mixtral-8x7b": (2 + 8) * 4096}
    for op in (F, B, W):
        assert part.flops(op) * tp * degrees.get("cp", 1) == pytest.approx(whole.flops(op))
    split, norms = degrees.get("ep", 1) * degrees.get("etp", tp), on_all[model]
    assert part.parameters.expert * split == whole.parameters.expert
    assert part.parameters.dense == pytest.approx((whole.parameters.dense - norms) / tp + norms)


def test_experts_exchange_each_tokens_copies_and_their_products_are_grouped() -> None:
    sent = collectives(layer_of("mixtral-8x7b", ep=8, dp=8, seq=1024))
    assert {(k.kind, k.group, k.size) for k in sent} == {("all-to-all", "ep", 8)}
    assert [k.op for k in sent] == [F, F, B, B]
    assert {k.bytes for k in sent} == {1024 * 2 * 4096 * 2}
    assert sent[0].wire_bytes == sent[0].bytes * 7 / 8
    grouped = products(layer_of("qwen3-30b-a3b", seq=4096), F)
    first = next(k for k in grouped if "experts" in k.name)
    assert (first.count, first.m, first.n, first.k) == (128, 4096 * 8 / 128, 2 * 768, 2048)


def test_keys_and_values_go_around_the_ring() -> None:
    both = 2 * 2048 * 8 * 128 * 2  # 2,048 tokens, 8 heads of 128, two bytes
    sent = collectives(layer_of("llama-3-8b", cp=4, seq=8192))
    assert [(k.op, k.group, k.bytes, k.count) for k in sent] == [
        (F, "cp", both, 3),
        (B, "cp", 2 * both, 3),
    ]


def test_full_recomputation_runs_the_forward_again_and_keeps_the_input() -> None:
    plain, full = layer_of("llama-3-8b"), layer_of("llama-3-8b", recompute="full")
    assert full.flops(R) == full.flops(F) == plain.flops(F)
    assert full.m_b == 2 * 4096 * 4096
    assert full.m_b + full.m_r == plain.m_b
    assert full.m_w == plain.m_w
    forward = [k.name for k in products(plain, F)]
    for op in (B, W):
        assert [k.name for k in products(plain, op)] == forward[::-1]


def test_selective_recomputation_brings_back_what_it_drops() -> None:
    plain, again = (layer_of("llama-3-8b", recompute=each) for each in ("none", "selective"))
    assert again.m_r > 0
    assert again.m_b + again.m_r == pytest.approx(plain.m_b)
    assert [k.name for k in again.of(F)] == [k.name for k in plain.of(F)]
    assert [k.name for k in again.of(R)] == ["attention"]


def test_a_window_bounds_the_pairs_of_attention() -> None:
    layers = work("gemma-2-9b", seq=8192).layers[1:3]
    near, far = (next(k for k in x.of(F) if hasattr(k, "rounds")).flops for x in layers)
    pairs = (4096 * 8192 - 4096**2 / 2, 8192**2 / 2)
    assert (near, far) == tuple(2 * 16 * 2 * 256 * each for each in pairs)


def test_multi_token_prediction_is_a_layer_a_projection_and_a_head() -> None:
    *_, moe, mtp, head = work("deepseek-v3").layers
    projection = 2 * 2 * 4096 * 7168**2
    assert mtp.flops(F) == pytest.approx(moe.flops(F) + projection + head.flops(F))
    assert mtp.parameters.total == moe.parameters.total + 2 * 7168**2 + 3 * 7168
    assert mtp.parameters.tied == 0


def test_a_tied_matrix_is_held_twice_where_its_layers_are_on_two_ranks() -> None:
    for pp in (1, 2):
        embedding, *_, head = work("gpt-22b", pp=pp, tp=2).layers
        assert (embedding.parameters.tied, head.parameters.tied) == (0, (pp - 1) * 51200 * 6144 / 2)


@pytest.mark.parametrize(
    ("run", "each"),
    [
        ({"sharding": "none"}, (2, 2, 12)),
        ({"sharding": "zero1"}, (2, 2, 3)),
        ({"sharding": "zero2"}, (2, 0.5, 3)),
        ({"sharding": "fsdp"}, (1, 0.5, 2)),  # float32; a layer's experts are gathered in two bytes
        ({"precision": "fp32", "gradients": "fp32"}, (4, 4, 8)),  # weights are their own master
        ({"gradients": "fp32"}, (2, 4, 12)),
    ],
)
def test_sharding_divides_states_by_replicas(run: dict[str, str], each: tuple[float, ...]) -> None:
    run = {"gradients": "bf16"} | run
    found = pipeloom.predict("mixtral-8x7b", gpu="H100", gpus=4, **run).step.setup.states[0]
    *kept, _, gathered = astuple(found)
    count = pipeloom.arithmetic("mixtral-8x7b").parameters
    assert kept == pytest.approx([bytes_ * count for bytes_ in each])
    experts = 8 * 3 * 4096 * 14336
    assert gathered == (2 * experts if run.get("sharding") == "fsdp" else 0)
