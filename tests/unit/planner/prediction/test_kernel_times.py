"""Kernels and messages against what their rooflines say by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom import predict
from pipeloom.planner import Cluster, Precision
from pipeloom.planner.models.work import Elementwise
from pipeloom.planner.prediction.layer_times import CollectiveTimes, KernelTimes
from tests.support.inner import (
    Attention,
    Collective,
    CollectiveKind,
    Efficiency,
    Gemm,
    Group,
    OpKind,
    TrainingRun,
    preset,
    read_model,
)

USUAL = replace(Efficiency(), kernel_ms=1e-6, gemm=0.8, gemm_narrow=0.5, memory=0.8, link=0.8)
A100 = replace(preset("dgx-a100"), efficiency=USUAL)
TIMES = KernelTimes(A100)


def gemm(m: float, n: float, k: float, precision: Precision = Precision.BF16) -> Gemm:
    return Gemm("product", "mlp", OpKind.F, m, n, k, 1, precision)


def test_large_product_reaches_its_share_of_the_peak() -> None:
    tiles = 108 * 128  # one wave, full
    product = gemm(tiles, 12800, 65536)
    reached = product.flops / (312e9 * TIMES.of(product))
    assert reached == pytest.approx(0.8 * 65536 / (65536 + USUAL.gemm_depth))


def test_small_result_leaves_multiprocessors_idle() -> None:
    one, half = gemm(12 * 128, 9 * 128, 8192), gemm(6 * 128, 9 * 128, 8192)
    assert TIMES.of(half) == pytest.approx(TIMES.of(one))


def test_shallow_product_waits_for_memory() -> None:
    product = gemm(128, 108 * 128, 128)
    assert TIMES.of(product) == pytest.approx(product.bytes / (2039e6 * 0.8))


def test_no_kernel_takes_less_than_its_launch() -> None:
    slow = KernelTimes(replace(A100, efficiency=replace(USUAL, kernel_ms=0.05)))
    assert slow.of(gemm(16, 16, 16)) == 0.05
    assert slow.of(Elementwise("norm", "norm", OpKind.F, 64.0, 3)) == pytest.approx(0.15)


def test_narrow_numbers_have_their_own_peak_and_share() -> None:
    h100 = KernelTimes(replace(preset("H100"), efficiency=USUAL))
    wide, narrow = gemm(65536, 16384, 8192), gemm(65536, 16384, 8192, Precision.FP8)
    assert h100.of(wide) / h100.of(narrow) == pytest.approx(1979 * 0.5 / (989 * 0.8))


def test_attention_backward_and_in_a_ring() -> None:
    def kernel(op: OpKind, queries: float) -> Attention:
        shape = (1.0, 32.0, queries, 8192.0)
        return Attention("attention", "core_attn", op, *shape, 1e12, 1.0)

    forward = TIMES.of(kernel(OpKind.F, 8192.0))
    assert forward == pytest.approx(1e12 / (312e9 * USUAL.attention))
    back = TIMES.of(kernel(OpKind.B, 8192.0))
    assert back == pytest.approx(forward / USUAL.attention_backward)
    assert TIMES.of(kernel(OpKind.F, 1024.0)) == pytest.approx(forward / USUAL.attention_ring)
    slow = KernelTimes(replace(A100, efficiency=replace(USUAL, kernel_ms=10.0)))
    assert slow.of(kernel(OpKind.F, 1024.0)) == pytest.approx(80.0)  # each of 8 rounds
    idle = 32 * 256 / 128 / 108  # tiles of queries on multiprocessors
    assert TIMES.of(kernel(OpKind.F, 256.0)) == pytest.approx(forward / USUAL.attention_ring / idle)


def test_more_context_parallel_ranks_lose_on_shorter_chunks() -> None:
    """Of as many tokens a rank: products are the same, attention has more rounds."""
    run = {"gpus": 8, "global_batch": 8, "seq": 8192}
    times = [
        predict("llama-3-8b", gpu="H100", **run, cp=cp, micro_batch=size).step_ms
        for cp, size in ((1, 1), (2, 2), (4, 4), (8, 8))
    ]
    assert times == sorted(times)
    assert len({*times}) == 4


def messages(cluster: Cluster = A100, **run: int) -> CollectiveTimes:
    return CollectiveTimes(cluster, TrainingRun.of(run, read_model("llama-3-8b")))


def collective(kind: CollectiveKind, group: Group, size: int, count: int = 1) -> Collective:
    return Collective("message", "mlp", OpKind.F, kind, group, size, 1e9, count)


def test_all_reduce_inside_a_node() -> None:
    times = messages(tp=8, gpus=8)
    found = times.of(collective(CollectiveKind.ALL_REDUCE, Group.TP, 8))
    moved = 2 * 7 / 8 * 1e9 / (300e6 * 0.8)
    assert found == pytest.approx(USUAL.collective_ms + 6 * A100.inside.latency + moved)
    assert times.of(collective(CollectiveKind.ALL_REDUCE, Group.TP, 1)) == 0.0


def test_replicas_on_several_nodes_leave_over_all_their_cards() -> None:
    alone, four = messages(tp=8, dp=4, gpus=32), messages(tp=2, dp=16, gpus=32)
    assert alone.link(Group.DP, 4).gigabytes_per_second == 25.0
    assert four.link(Group.DP, 16).gigabytes_per_second == 100.0
    assert messages(dp=64, gpus=64).link(Group.DP, 64).gigabytes_per_second == 200.0
