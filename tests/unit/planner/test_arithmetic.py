"""``arithmetic``: the figures of LLaMA-2 70B that one works out by hand, and by layers."""

from __future__ import annotations

import pipeloom
from pipeloom.planner.models.arithmetic import LinkNeed

LLAMA = pipeloom.arithmetic("llama-2-70b", micro_batch=8)


def test_llama_2_70b_by_hand() -> None:
    rule = LLAMA.by_rule
    assert (rule.parameters, rule.gradients, rule.optimizer) == (140e9, 140e9, 840e9)
    assert rule.activations == 34 * 80 * 4096 * 8 * 8192  # 730 GB
    assert round(rule.activations / 1e9) == 730
    assert rule.devices == 24
    assert LLAMA.most_stages == 80


def test_llama_2_70b_by_layers() -> None:
    """Exact parameters; narrower keys and values, a gated feed-forward part of 3.5 h, no masks."""
    summed, count = LLAMA.summed, 68_976_648_192
    assert LLAMA.parameters == LLAMA.active == count
    assert (summed.parameters, summed.optimizer) == (2 * count, 12 * count)
    tokens = 4096 * 8
    layer = 2 * (4 * 8192 + 8192 + 2 * 1024 + 8192 + 3 * 28672) + 4 * 64
    head = 4 * 8192 + 4 * 32000
    assert summed.activations == tokens * (80 * layer + head)


def test_what_links_have_to_carry() -> None:
    """A pipeline's is the least by far; tensor parallelism needs the links of a node."""
    needs = {need.name: need for need in LLAMA.links}
    assert {name: need.devices for name, need in needs.items()} == {
        "pipeline": 24,
        "tensor": 8,
        "fsdp": 24,
    }
    assert needs["pipeline"].bytes == 2 * 4096 * 8 * 8192
    assert needs["pipeline"].link == "ethernet-10g"
    assert needs["fsdp"].link == "infiniband-100g, ethernet-100g"
    assert needs["tensor"].link == "nvlink5"
    order = [needs[name].gigabytes_per_second for name in ("pipeline", "fsdp", "tensor")]
    assert order == sorted(order)
    assert LinkNeed("pipeline", 2, 1e15, 1.0, True).link is None


def test_figures_of_one_rank_by_stage() -> None:
    found = pipeloom.arithmetic("mixtral-8x7b", gpus=32, tp=2, pp=4, ep=2, sharding="zero1")
    states = found.states()
    assert len(states) == 4
    assert found.active < found.parameters == 46_702_792_704
    document = found.to_dict()
    assert [stage["layers"] for stage in document["stages"]] == [9, 8, 8, 9]
    assert sum(layer["count"] for layer in document["layers"]) == 34
    assert "bytes on one rank of each stage" in str(found)
