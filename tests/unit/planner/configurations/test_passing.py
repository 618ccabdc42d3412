"""Pipelines whose ranks pass weights, in the space of ``plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeloom import plan, verify_program, verify_schedule
from pipeloom.ir.formats.json_reader import read_json
from tests.support.inner import (
    BoundedConfiguration,
    Bounds,
    Configuration,
    Passing,
    SolveOptions,
    Space,
    evaluate,
    improve,
    losses_of,
    read_cluster,
)

MODEL = {
    **{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 2048},
    **{"num_hidden_layers": 4, "num_attention_heads": 16},
}
SLOW: dict[str, Any] = {
    **{"format": "pipeloom.cluster", "version": 1, "gpus_per_node": 1},
    **{key: {"latency": 0.05, "gigabytes_per_second": 1.0} for key in ("inside", "between")},
    "gpu": {
        **{"name": "small", "teraflops": {"bf16": 10, "fp32": 10}, "memory_gib": 8},
        **{"gigabytes_per_second": 900, "multiprocessors": 108},
    },
    "efficiency": {"exposed": 1.0},
}
"""Nothing hides the averaging of gradients, and four layers on three ranks are uneven."""
RUN: dict[str, Any] = {"gpus": 3, "global_batch": 12, "seq": 8192, "tp": 1, "cp": 1}


def test_weights_travel_where_links_are_slow(tmp_path: Path) -> None:
    """Their step is below all plans that pass activations, pure FSDP among these."""
    found = plan(MODEL, SLOW, **RUN, passing="auto", work_limit=10)
    best, other = found.best, plan(MODEL, SLOW, **RUN, work_limit=10)
    assert best.name == "pp3 b1 weights cut"
    assert best.found.configuration.passing is Passing.WEIGHTS
    assert found.lower_bound <= best.lower_bound <= best.step_ms < other.lower_bound
    assert best.prediction.memory_gib <= 8
    assert sum(best.parts.values()) == pytest.approx(best.step_ms)
    assert sum(losses_of(best.step).values()) == pytest.approx(best.step_ms)
    assert "weights" in str(found)
    notes = found.write(tmp_path)
    assert sum("keeps each stage on one rank; got weights" in note for note in notes) == 3
    assert not verify_schedule(read_json(str(tmp_path / "schedule.json")))
    assert not verify_program(read_json(str(tmp_path / "program.json")))


def test_weights_alone_leave_nothing_else() -> None:
    space = Space.of(MODEL, read_cluster(SLOW), RUN | {"passing": "weights", "gpus": 6})
    found = configurations(space)
    assert found
    for each in found:
        assert each.passing is Passing.WEIGHTS
        assert 1 < each.run.pp <= each.run.microbatches


def test_by_default_activations_alone_are_passed() -> None:
    own, same, both = (
        configurations(Space.of(MODEL, read_cluster(SLOW), RUN | given))
        for given in ({}, {"passing": "activations"}, {"passing": "auto"})
    )
    assert own == same == [each for each in both if each.passing is Passing.ACTIVATIONS]
    assert len(both) > len(own)


def test_no_schedule_that_passes_weights_is_below_its_bounds() -> None:
    cluster = read_cluster(SLOW | {"gpus_per_node": 4})
    given = {"passing": "weights", "gpus": 4, "seq": 2048, "micro_batch": 1}
    space, tried = Space.of(MODEL, cluster, RUN | given), 0
    bounds = Bounds(space.model, cluster, weights=True)
    for each in configurations(space):
        least = bounds.of(each)
        spread = bounds.of_degrees(each.run, space.shardings(each.run))
        assert spread.step_ms <= least.step_ms * (1 + 1e-9), each.name
        assert spread.memory_gib <= least.memory_gib * (1 + 1e-9), each.name
        asked = BoundedConfiguration(space.model, cluster, each, least)
        found = improve(asked, evaluate(asked), SolveOptions(work_limit=0.1))
        assert found.lower_bound >= least.step_ms
        if found.step_ms < float("inf"):
            tried += 1
            assert found.lower_bound <= found.step_ms * (1 + 1e-9), each.name
            assert least.memory_gib <= found.memory_gib <= 8, each.name
    assert tried > 2


def configurations(space: Space) -> list[Configuration]:
    bounds = Bounds(space.model, space.cluster)
    return [each for run in space.degrees() for each in space.configurations(run, bounds.cut)]
