"""The search of a space: how it ends, and what can be spread over processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from pipeloom.ir.errors import InfeasibleError
from pipeloom.planner.clusters.cluster import preset
from pipeloom.planner.configurations.choose import SpaceSearch
from pipeloom.planner.configurations.evaluation import BoundedConfiguration, Evaluated
from pipeloom.planner.configurations.space import Space
from pipeloom.planner.plan import plan

RUN: dict[str, Any] = {"gpus": 8, "global_batch": 16, "seq": 2048, "pp": 4, "tp": 1}


def test_evaluation_is_the_same_in_another_process() -> None:
    """Questions and answers are pickled, as an executor does."""

    def elsewhere(evaluate: Any, asked: Iterable[BoundedConfiguration]) -> Iterator[Evaluated]:
        for each in asked:
            yield pickle.loads(pickle.dumps(evaluate(pickle.loads(pickle.dumps(each)))))

    space = Space.of("llama-3-8b", preset("H100"), RUN | {"schedule": "1f1b"})
    here = SpaceSearch(space, 20.0).choose()
    there = SpaceSearch(space, 20.0, run=elsewhere).choose()
    assert [(e.configuration, e.step_ms, e.lower_bound) for e in here.evaluated] == [
        (e.configuration, e.step_ms, e.lower_bound) for e in there.evaluated
    ]
    assert here.lower_bound == there.lower_bound


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
    assert found.lower_bound <= found.best.step_ms


def test_nothing_found_in_time_is_said() -> None:
    with pytest.raises(InfeasibleError, match="--time-limit"):
        plan("llama-3-8b", "H100", **RUN, should_stop=lambda: True)
