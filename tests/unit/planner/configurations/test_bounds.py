"""Bounds of configurations: no schedule that is simulated is below them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pipeloom import InputError
from pipeloom.planner.configurations.bounds import balanced_cut
from pipeloom.planner.configurations.evaluation import fullest, step_of
from tests.support.inner import (
    BoundedConfiguration,
    Bounds,
    Configuration,
    Setup,
    SolveOptions,
    Space,
    StepTimes,
    evaluate,
    improve,
    preset,
)

SPACES: dict[str, dict[str, Any]] = {
    "llama-3-8b": {"gpus": 16, "global_batch": 32, "seq": 2048},
    "mixtral-8x7b": {"gpus": 32, "global_batch": 64, "seq": 2048},
    "gemma-2-9b": {"gpus": 8, "global_batch": 16, "seq": 8192},
}
EXACT = 1 + 1e-9


def configurations(space: Space, bounds: Bounds, most: int) -> list[Configuration]:
    """A sample of the space."""
    random = Random(7)
    spreads = list(space.degrees())
    found: list[Configuration] = []
    for run in random.sample(spreads, min(most, len(spreads))):
        found.append(random.choice(list(space.configurations(run, bounds.cut))))
    return found


@pytest.mark.parametrize("model", SPACES)
def test_no_schedule_is_below_the_bounds(model: str) -> None:
    space = Space.of(model, preset("H100"), SPACES[model])
    bounds = Bounds(space.model, space.cluster)
    tried = 0
    for each in configurations(space, bounds, 40):
        least = bounds.of(each)
        spread = bounds.of_degrees(each.run, space.shardings(each.run))
        if least.memory_gib <= space.cluster.gpu.memory_gib:
            assert spread.step_ms <= least.step_ms * EXACT, each.name
        assert spread.memory_gib <= least.memory_gib * EXACT, each.name
        for family in each.families:
            run = replace(each.run, schedule=family)
            step = StepTimes(Setup(space.model, run, space.cluster), space.cluster)
            try:
                time = step.time
            except InputError:  # too few microbatches for this family
                continue
            tried += 1
            if fullest(step) <= space.cluster.gpu.memory_gib:  # the time's bound is for those
                assert least.step_ms <= time * EXACT, (each.name, family)
            assert least.memory_gib <= fullest(step) * EXACT, (each.name, family)
    assert tried > 10


def test_a_single_rank_meets_its_bound() -> None:
    space = Space.of("llama-3-8b", preset("H100"), {"gpus": 8, "global_batch": 16, "pp": 1})
    bounds = Bounds(space.model, space.cluster)
    for each in configurations(space, bounds, 5):
        time = step_of(space.model, space.cluster, each).time
        assert bounds.of(each).step_ms == pytest.approx(time)


def test_the_optimizer_improves_a_fused_schedule_within_its_bound() -> None:
    given = {"gpus": 4, "global_batch": 6, "pp": 4, "vp": 1, "micro_batch": 1, "recompute": "full"}
    space = Space.of("llama-3-8b", preset("H100"), given | {"seq": 1024})
    bounds = Bounds(space.model, space.cluster)
    run = next(space.degrees())
    for each in space.configurations(run, bounds.cut):
        asked = BoundedConfiguration(space.model, space.cluster, each, bounds.of(each))
        known = evaluate(asked)
        better = improve(asked, known, SolveOptions(work_limit=0.5))
        assert better.lower_bound >= known.lower_bound
        assert better.lower_bound <= better.step_ms * EXACT
        assert better.step_ms <= known.step_ms


def test_a_cut_makes_up_for_the_ends() -> None:
    assert balanced_cut(8, 0.0, 0.0, (0, 1, 2, 3)) == (2, 2, 2, 2)
    assert balanced_cut(9, 1.0, 2.0, (0, 1, 2, 3)) == (2, 3, 3, 1)
    assert balanced_cut(7, 0.5, 0.5, (0, 1, 1, 0)) == (1, 2, 2, 2)


def test_degrees_are_bounded_as_each_sharding_recomputes() -> None:
    """With FSDP selective recomputation is torch's, which holds less and takes longer."""
    fixed = {"gpus": 2, "global_batch": 8, "cp": 2, "micro_batch": 1, "recompute": "selective"}
    space = Space.of("llama-3-8b", preset("H100"), fixed | {"seq": 8192, "sharding": "fsdp"})
    bounds = Bounds(space.model, space.cluster)
    (run,) = space.degrees()
    for each in space.configurations(run, bounds.cut):
        least, spread = bounds.of(each), bounds.of_degrees(run, space.shardings(run))
        assert spread.step_ms <= least.step_ms * EXACT
        assert spread.memory_gib <= least.memory_gib * EXACT
