"""The search of a space: how it ends, and what can be spread over processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from pipeloom.ir.errors import InfeasibleError
from pipeloom.planner.clusters.cluster import preset
from pipeloom.planner.configurations import choose
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


def test_a_family_that_needs_too_much_memory_is_no_lack_of_time() -> None:
    run = RUN | {"global_batch": 64, "seq": 8192, "pp": 8, "micro_batch": 1, "recompute": "none"}
    with pytest.raises(InfeasibleError, match=r"nothing that was tried fits: .* gpipe"):
        plan("llama-3-8b", "H100", **run, schedule="gpipe", time_limit=60.0)


def test_what_waits_after_the_search_for_schedules_is_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The share of the time for evaluation is over at once; what is left of it goes there too."""
    monkeypatch.setattr(choose, "SEARCHING", 0.0)
    space = Space.of("llama-3-8b", preset("H100"), RUN | {"schedule": "1f1b"})
    found = SpaceSearch(space, 60.0).choose()
    assert not found.stopped
    assert found.lower_bound == pytest.approx(found.evaluated[0].step_ms, rel=0.2)
    monkeypatch.undo()
    assert found.lower_bound == SpaceSearch(space, 60.0).choose().lower_bound
