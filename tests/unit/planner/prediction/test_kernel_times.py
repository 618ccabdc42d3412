"""Times of kernels and messages compared with rooflines computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeloom import predict
from pipeloom.ir import OpKind
from pipeloom.planner import Efficiency, Precision, preset

USUAL = Efficiency(kernel_ms=1e-6, gemm=0.8, gemm_narrow=0.5, memory=0.8, link=0.8)
A100 = preset("dgx-a100")


def step(gpu: Any = A100, reached: Efficiency = USUAL, **run: Any) -> Any:
    cluster = gpu.model_copy(update={"efficiency": reached})
    return predict("llama-3-8b", cluster=cluster, layers=1, **run).step


ONE = step()
_, LAYER, _ = ONE.setup.work.layers
PRODUCT = next(k for k in LAYER.of(OpKind.F) if hasattr(k, "n"))
ATTENTION = next(k for k in LAYER.of(OpKind.F) if hasattr(k, "rounds"))


def gemm(m: float, n: float, k: float, precision: Precision = Precision.BF16) -> Any:
    return replace(PRODUCT, m=m, n=n, k=k, count=1, precision=precision)


def test_products_reach_their_share_of_the_peak() -> None:
    """Large products reach it, except for their depth; small results leave multiprocessors idle;
    shallow ones are limited by memory; narrow formats have their own peak and share."""
    of = ONE.rates.of
    wave = gemm(108 * 128, 12800, 65536)  # all multiprocessors are busy
    assert wave.flops / (312e9 * of(wave)) == pytest.approx(
        0.8 * 65536 / (65536 + USUAL.gemm_depth)
    )
    assert of(gemm(6 * 128, 9 * 128, 8192)) == pytest.approx(of(gemm(12 * 128, 9 * 128, 8192)))
    shallow = gemm(128, 108 * 128, 128)
    assert of(shallow) == pytest.approx(shallow.bytes / (2039e6 * 0.8))
    h100 = step(preset("H100")).rates
    wide, narrow = (gemm(65536, 16384, 8192, each) for each in (Precision.BF16, Precision.FP8))
    assert h100.of(wide) / h100.of(narrow) == pytest.approx(1979 * 0.5 / (989 * 0.8))


def test_attention_backward_and_in_a_ring() -> None:
    def kernel(op: OpKind, queries: float) -> Any:
        rounds = round(8192 / queries)
        return replace(ATTENTION, op=op, rows=32 * queries, rounds=rounds, flops=1e12, bytes=1.0)

    of = ONE.rates.of
    forward = of(kernel(OpKind.F, 8192.0))
    assert forward == pytest.approx(1e12 / (312e9 * USUAL.attention))
    assert of(kernel(OpKind.B, 8192.0)) == pytest.approx(forward / USUAL.attention_backward)
    ring = forward / USUAL.attention_ring
    assert of(kernel(OpKind.F, 1024.0)) == pytest.approx(ring)
    idle = 32 * 256 / 128 / 108  # tiles of queries per multiprocessor
    assert of(kernel(OpKind.F, 256.0)) == pytest.approx(ring / idle)
    slow = step(reached=USUAL.model_copy(update={"kernel_ms": 10.0})).rates
    assert slow.of(kernel(OpKind.F, 1024.0)) == pytest.approx(80.0)  # each of 8 rounds


def test_messages_take_latencies_and_bandwidth() -> None:
    """Replicas on several nodes use all network cards that their rings have in a node."""
    spread = step(tp=8, gpus=8)
    sent = next(k for k in spread.setup.work.layers[1].kernels if hasattr(k, "group"))
    latency, moved = A100.inside.latency, 7 / 8 * 1e9 / (300e6 * 0.8)
    rules = {"all-reduce": (6, 2), "all-gather": (7, 1), "all-to-all": (1, 1)}
    for kind, (latencies, times) in rules.items():
        message = replace(sent, kind=type(sent.kind)(kind), size=8, bytes=1e9, count=1)
        found = spread.rates.of(message) - USUAL.collective_ms
        assert found == pytest.approx(latencies * latency + times * moved)
    for run, reached in (({"tp": 8, "dp": 4}, 25), ({"tp": 2, "dp": 16}, 100), ({"dp": 64}, 200)):
        assert step(**run).replica_link.gigabytes_per_second == pytest.approx(0.8 * reached)
