"""The search of a space: how it ends, and what can be spread over processes."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import numpy as np
import pytest

from pipeloom.ir.errors import InfeasibleError
from pipeloom.planner.clusters.cluster import preset
from pipeloom.planner.configurations import choose
from pipeloom.planner.configurations.choose import TOGETHER, SpaceSearch
from pipeloom.planner.configurations.space import Space
from pipeloom.planner.plan import plan
from pipeloom.solver.core.options import SolveOptions

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
    """The share of the time for evaluation is over at once; what is left of it goes there too."""
    monkeypatch.setattr(choose, "SEARCHING", 0.0)
    space = Space.of("llama-3-8b", preset("H100"), RUN | {"schedule": "1f1b"})
    found = SpaceSearch(space, LONG).choose()
    assert not found.stopped
    assert found.lower_bound == pytest.approx(found.evaluated[0].step_ms, rel=0.2)
    monkeypatch.undo()
    assert found.lower_bound == SpaceSearch(space, LONG).choose().lower_bound
