"""The space of ``plan``: its configurations, lower bounds, and the end of a search."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from pipeloom import (
    InfeasibleError,
    InputError,
    Plan,
    plan,
    predict,
)
from pipeloom.planner import Configuration, TrainingRun
from pipeloom.solver import FAMILIES

EXACT = 1 + 1e-9
DEGREES = ("gpus", "global_batch", "seq", "tp", "pp", "vp", "dp", "cp", "ep", "etp", "micro_batch")
BATCH = {"gpus": 8, "global_batch": 16}
ONE = {"micro_batch": 1, "recompute": "none"}
RUN: dict[str, Any] = BATCH | {"seq": 2048, "pp": 4, "tp": 1}


def first(model: Any, **given: Any) -> Plan:
    """The search of this space, stopped after the first result."""
    told: list[object] = []
    given = {"cluster": given.pop("gpu", "GB200"), "work_limit": 10} | given
    given |= {"progress": told.append}
    return plan(model, **given, should_stop=lambda: bool(told))


def configurations(model: Any, **given: Any) -> list[Configuration]:
    """All configurations of a space, with an uneven cut for each even one."""
    space = first(model, **BATCH | given).space

    def cut(run: TrainingRun) -> tuple[int, ...]:
        first, *others, last = run.layers_by_stage
        return first + 1, *others, last - 1

    return [each for run in space.degrees() for each in space.configurations(run, cut)]


def names(model: str, **given: Any) -> set[str]:
    return {each.name for each in configurations(model, **given)}


def test_what_is_in_a_space() -> None:
    cut = {"tp8 b16 full", "cp8 b1 zero1", "pp2 dp4 vp2 b1 zero1 cut v B/W"}
    assert cut <= names("llama-3-8b")
    experts = {"dp8 ep8 b1 zero1", "tp2 dp4 ep4 b1 zero1", "tp2 dp4 ep8 etp1 b1 zero1"}
    assert experts <= names("mixtral-8x7b", **ONE, pp=1, sharding="zero1", cp=1)
    v = names("llama-3-8b", **ONE, tp=4, pp=2, schedule="zb-v")
    assert v == {"tp4 pp2 vp2 b1 v B/W", "tp4 pp2 vp2 b1 cut v B/W"}
    # a single replica is not sharded
    alone = {f"tp4 pp2 b1{cut}{split}" for cut in ("", " cut") for split in ("", " B/W")}
    sharded = names("llama-3-8b", **ONE, tp=4, sharding="fsdp", vp=1)
    assert sharded == alone | {"tp4 dp2 b1 fsdp", "tp4 cp2 b1 fsdp"}


def test_all_families_that_predict_knows_are_tried_if_they_do_not_depend_on_times() -> None:
    tried = {family for each in configurations("llama-3-8b", **ONE) for family in each.families}
    run: dict[str, Any] = BATCH | {"gpu": "H100", "pp": 4}
    for name, family in FAMILIES.items():
        known = False
        for vp in (1, 2):
            with suppress(InputError):  # a stage changes ranks, or another number of stages
                known |= bool(predict("llama-3-8b", **run, vp=vp, schedule=name))
        assert (name in tried) == (known and not family.by_times)


@pytest.mark.parametrize(
    ("model", "gpu", "given"),
    [
        ("llama-3-8b", "A100", {"gpus": 16, "global_batch": 32, "seq": 2048}),
        ("mixtral-8x7b", "GB200", {"gpus": 32, "global_batch": 64, "seq": 2048, "cp": 1}),
        ("gemma-2-9b", "H200", {"gpus": 8, "global_batch": 16, "seq": 8192}),
        ("llama-3-8b", "H100", {"gpus": 2, "global_batch": 8, "seq": 8192, "sharding": "fsdp"}),
    ],
)
def test_no_schedule_is_below_the_bounds(model: str, gpu: str, given: dict[str, Any]) -> None:
    """For all degrees, and for each sampled configuration; those that do not fit have a lower bound
    on their memory. With FSDP, selective recomputation is torch's, which holds less and takes
    longer."""
    given = given | {"gpu": gpu}
    whole = first(model, **given)
    sample, device, predicted = [*whole.space.degrees()], whole.space.device_gib, 0
    for run in Random(7).sample(sample, min(8, len(sample))):
        fixed = given | {key: getattr(run, key) for key in DEGREES}
        fixed |= {"recompute": str(run.recompute).replace("full", "none")}
        families = ("1f1b", "zb-h1", "gpipe") if run.vp == 1 else ("interleaved-1f1b", "zb-v")
        fixed["sharding"] = "none" if run.dense_replicas == 1 else given.get("sharding", "zero1")
        try:
            found = first(model, **fixed)
            step_ms, gib = found.lower_bound, 0.0
            assert whole.lower_bound <= found.best.step_ms * EXACT
        except InfeasibleError as error:
            least = re.search(r"at least ([\d.]+) GiB", str(error))
            step_ms, gib = np.inf, float(least[1] if least else 0)
        for family in families[: None if run.pp > 1 else 1]:
            with suppress(ValueError):  # too few microbatches, or not a V
                step = predict(model, **fixed, schedule=family)
                predicted += 1
                assert step_ms <= step.step_ms * EXACT or step.memory_gib > device
                assert gib <= step.memory_gib + 0.05
    assert predicted >= 8


def test_the_cut_makes_up_for_the_ends() -> None:
    """No other cut of six layers into three stages has a shorter longest stage."""
    model = {"model_type": "llama", "num_hidden_layers": 6, "vocab_size": 64000}
    run: dict[str, Any] = {"gpus": 3, "pp": 3, "vp": 1, "global_batch": 6, "seq": 1024} | ONE

    def longest(cut: tuple[int, ...]) -> float:
        stages = predict(model, gpu="H100", **run, layers_per_stage=cut).profile.stages
        return max(stage.t_f + stage.fused for stage in stages)

    found = plan(model, "H100", **run, work_limit=10).ranking.evaluated
    (cut,) = {e.configuration.run.layers_by_stage for e in found} - {(2, 2, 2)}
    every = [each for each in product(range(7), repeat=3) if sum(each) == 6 and each[1]]
    assert longest(cut) == min(map(longest, every))


def test_limited_work_gives_the_same_plan_in_every_process() -> None:
    """The same bytes, in any process; another work limit may give another plan."""
    run = RUN | {"micro_batch": 1, "recompute": "none", "vp": 2, "sharding": "zero1"}
    here, there = (
        plan("llama-3-8b", "H100", **run, work_limit=10, workers=workers) for workers in (1, 2)
    )
    assert here.best.found.schedule == "optimized"
    family = predict("llama-3-8b", gpu="H100", **run)
    assert here.lower_bound <= here.best.lower_bound <= here.best.step_ms < family.step_ms
    assert json.dumps(here.to_dict()) == json.dumps(there.to_dict())
    assert all(map(np.array_equal, here.best.schedule.order, there.best.schedule.order))
    less = plan("llama-3-8b", "H100", **run, work_limit=2)
    assert less.stopped
    assert less.best.step_ms >= here.best.step_ms


def test_a_search_that_is_stopped_keeps_the_best_and_a_bound_on_all() -> None:
    found = first("llama-3-8b", gpu="H100", work_limit=None, **RUN)
    whole = plan("llama-3-8b", "H100", **RUN, schedule="1f1b")
    assert (found.stopped, whole.stopped) == (True, False)
    assert found.lower_bound <= whole.lower_bound <= whole.best.step_ms
    with pytest.raises(InfeasibleError, match="interrupted before a plan"):
        plan("llama-3-8b", "H100", **RUN, should_stop=lambda: True)
