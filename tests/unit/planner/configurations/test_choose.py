"""The search of a space: how it ends, and what can be spread over processes."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import numpy as np
import pytest

from pipeloom import (
    InfeasibleError,
    compile_schedule,
    dump_program,
    dump_schedule,
    plan,
    verify_program,
    verify_schedule,
)
from pipeloom.ir.model.ops import fields_of
from pipeloom.planner import PlannedConfiguration
from pipeloom.planner.configurations import choose
from pipeloom.planner.configurations.choose import TOGETHER, SpaceSearch
from pipeloom.planner.configurations.reasons import other_rates
from tests.support.inner import (
    BoundedConfiguration,
    Bounds,
    OpKind,
    SolveOptions,
    Space,
    evaluate,
    improve,
    losses_of,
    preset,
)

LONG = SolveOptions(time_limit=60.0)
RUN: dict[str, Any] = {"gpus": 8, "global_batch": 16, "seq": 2048, "pp": 4, "tp": 1}


def test_limited_work_gives_the_same_plan_in_every_process() -> None:
    """Byte for byte, wherever schedules are searched; other work may give another plan."""
    run = RUN | {"micro_batch": 1, "recompute": "none", "vp": 2, "sharding": "zero1"}
    here, there = (
        plan("llama-3-8b", "H100", **run, work_limit=10, workers=workers) for workers in (1, 2)
    )
    assert here.best.found.schedule == "optimized"
    assert json.dumps(here.to_dict()) == json.dumps(there.to_dict())
    assert all(map(np.array_equal, here.best.schedule.order, there.best.schedule.order))
    less = plan("llama-3-8b", "H100", **run, work_limit=2)
    assert less.stopped
    assert less.best.step_ms >= here.best.step_ms


def test_a_stop_keeps_the_best_so_far() -> None:
    told: list[str] = []
    found = plan(
        "llama-3-8b",
        "H100",
        **RUN,
        progress=lambda event: told.append(str(event)),
        should_stop=lambda: bool(told),
    )
    assert found.stopped
    assert len(told) >= 1
    assert found.lower_bound <= plan("llama-3-8b", "H100", **RUN, schedule="1f1b").best.step_ms


def test_a_stop_amid_evaluation_forgets_no_bound() -> None:
    asked = count()
    space = Space.of("llama-3-8b", preset("H100"), RUN | {"schedule": "1f1b"})
    early = SpaceSearch(space, SolveOptions(should_stop=lambda: next(asked) > 3)).choose()
    assert early.stopped
    assert len(early.evaluated) < TOGETHER
    assert early.lower_bound <= SpaceSearch(space, LONG).choose().lower_bound


def test_nothing_found_in_time_is_said() -> None:
    with pytest.raises(InfeasibleError, match="--time-limit"):
        plan("llama-3-8b", "H100", **RUN, should_stop=lambda: True)


def test_a_family_that_needs_too_much_memory_is_no_lack_of_time() -> None:
    run = RUN | {"global_batch": 64, "seq": 8192, "pp": 8, "micro_batch": 1, "recompute": "none"}
    with pytest.raises(InfeasibleError, match=r"nothing that was tried fits: .* gpipe"):
        plan("llama-3-8b", "H100", **run, schedule="gpipe", time_limit=60.0)


def test_what_waits_after_the_search_for_schedules_is_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the first rounds none is for evaluation."""
    monkeypatch.setattr(choose, "ROUNDS", ((0.0, 0.5), (1.0, 1.0)))
    space = Space.of("llama-3-8b", preset("H100"), RUN | {"schedule": "1f1b"})
    found = SpaceSearch(space, LONG).choose()
    assert not found.stopped
    assert found.lower_bound == pytest.approx(found.evaluated[0].step_ms, rel=0.2)
    monkeypatch.undo()
    assert found.lower_bound == SpaceSearch(space, LONG).choose().lower_bound


@pytest.mark.parametrize(
    ("gpu", "seq", "given", "op"),
    [
        ("H100", 12288, {"recompute": "auto"}, OpKind.R),
        ("GH200", 14336, {"recompute": "none", "offload": "auto"}, OpKind.O),
    ],
)
def test_stages_are_recomputed_or_offloaded_for_the_microbatches_that_it_pays_for(
    gpu: str, seq: int, given: dict[str, Any], op: OpKind
) -> None:
    """Beside what recomputes nothing, or all; each schedule is valid, and so is its program."""
    run = {"gpus": 4, "pp": 4, "vp": 1, "tp": 1, "micro_batch": 1, "global_batch": 8, "seq": seq}
    fixed: dict[str, Any] = {**run, "layers_per_stage": (8, 8, 8, 8)}
    space = Space.of("llama-3-8b", preset(gpu), fixed | given)
    run = next(run for run in space.degrees() if not run.recompute)
    bounds = Bounds(space.model, space.cluster, space.remat, space.offload)
    own = next(each for each in space.configurations(run, bounds.cut) if not each.splits)
    asked = BoundedConfiguration(space.model, space.cluster, own, bounds.of(own))
    mixed = improve(asked, evaluate(asked), SolveOptions(work_limit=5.0))
    planned = PlannedConfiguration(space, mixed)
    kinds, _, _ = fields_of(np.concatenate(planned.schedule.order))
    assert 0 < (kinds == op).sum() < (kinds == OpKind.F).sum()
    assert planned.name == f"pp4 b1 {'auto' if op is OpKind.R else 'offload'} cut"
    assert sum(planned.parts.values()) == pytest.approx(planned.step_ms)
    assert bool(planned.step.again.any()) is (op is OpKind.R)
    assert sum(losses_of(planned.step).values()) == pytest.approx(planned.step_ms)
    rates = {each.rate for each in other_rates(space.model, space.cluster, [mixed])}
    assert ("host" in rates) is (op is OpKind.O)
    assert not verify_schedule(dump_schedule(planned.schedule))
    assert not verify_program(dump_program(compile_schedule(planned.schedule)))
    assert mixed.memory_gib <= space.cluster.gpu.memory_gib
    all_again = plan("llama-3-8b", gpu, **fixed, recompute="full", work_limit=2.0).best
    assert bounds.of_degrees(run, space.shardings(run)).step_ms <= mixed.step_ms
    assert mixed.lower_bound <= mixed.step_ms * (1 + 1e-9)
    assert mixed.step_ms < all_again.step_ms
