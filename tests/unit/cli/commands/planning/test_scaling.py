"""Plans on several numbers of GPUs: batches, what a step loses, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import pipeloom as library
from pipeloom import InfeasibleError, Scaling, predict
from pipeloom.planner.configurations.reasons import parts_of
from tests.support.inner import losses_of

FIXED: dict[str, Any] = {
    "gpu": "H100", "seq": 4096, "tp": 2, "pp": 2, "vp": 1, "cp": 1, "micro_batch": 1,
    "recompute": "selective", "sharding": "zero1", "schedule": "1f1b", "sequence_parallel": True,
}  # fmt: skip


def scaled(**more: Any) -> Scaling:
    options = FIXED | {"gpus": [16, 8], "global_batch": 16, "time_limit": 20} | more
    return library.scaling("llama-3-8b", **options)


def test_weak_scaling_has_the_batch_grow_and_strong_scaling_has_it_stay(tmp_path: Path) -> None:
    weak, strong = scaled(), scaled(scaling="strong")
    assert [(p.gpus, p.global_batch) for p in weak.points] == [(8, 16), (16, 32)]
    assert [(p.gpus, p.global_batch) for p in strong.points] == [(8, 16), (16, 16)]
    # the same microbatches a rank cost about the same; half of them have a larger bubble
    near, far = (each.efficiency(each.points[1]) or 0.0 for each in (weak, strong))
    assert 0.9 < near < 1.02
    assert far < near
    bubbles = [p.parts["bubble"] / sum(p.parts.values()) for p in strong.points]
    assert bubbles[1] > bubbles[0]
    strong.write(tmp_path)
    ElementTree.parse(tmp_path / "scaling.svg")
    known = json.loads((tmp_path / "scaling.json").read_text())["points"]
    assert [row["efficiency"] for row in known] == [1.0, far]
    for point in weak.points:
        assert point.plan is not None
        assert sum(point.parts.values()) == pytest.approx(point.plan["step_ms"])
        assert sum(point.bar().parts.values()) == pytest.approx(1e6 / point.tokens)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_a_step_loses_sums_up_to_it(recompute: str) -> None:
    run = FIXED | {"pp": 4, "gpus": 32, "global_batch": 64, "recompute": recompute}
    step = predict("llama-3-8b", **run).step
    parts, known = losses_of(step), parts_of(step)
    assert sum(parts.values()) == pytest.approx(step.time)
    assert all(value >= 0 for value in parts.values())
    assert parts["bubble"] + parts["links"] == pytest.approx(known["bubble"])
    assert (parts["memory"] > 0.1 * parts["compute"]) == (recompute == "full")
    assert parts["uneven"] > 0  # the head is on the last rank
    assert {"tp", "dp", "step"} <= parts.keys()


def test_a_number_without_a_plan_says_why_and_keeps_the_others() -> None:
    found = scaled(gpus=[8, 256], scaling="strong")
    assert [point.plan is None for point in found.points] == [False, True]
    assert "256 GPUs: gpus: expected a number over which" in str(found)
    with pytest.raises(InfeasibleError, match="memory"):
        scaled(gpus=[4], seq=131072, recompute="none")
