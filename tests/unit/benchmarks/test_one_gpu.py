"""The parts of the benchmark on one GPU, as far as a CPU can run them."""

from __future__ import annotations

import json

from benchmarks import Case
from benchmarks.one_gpu import PIPELINES, cases, columns, judge, measure
from benchmarks.one_gpu.ranks import difference, planned
from benchmarks.workers import measure as measure_row
from pipeloom.ir.model.profile import Profile, StageProfile

STAGES = (StageProfile(1.0, 1.0, 1.0, 3.0, 2.0),) * 2


def test_gradients_are_one_processs() -> None:
    assert difference("zb-v", "cpu") < 1e-12


def test_steps_beside_their_plans() -> None:
    case = next(case for case in cases("small") if case.part == PIPELINES)
    found = measure(Case(case.part, case.name, {**case.given}))
    row = json.loads(json.dumps(found)) | {"part": PIPELINES, "case": case.name}
    assert all(each["measured_ms"] > 0 for each in row["schedules"].values())
    assert {"1f1b", "zb-2p", "weipipe-interleave"} <= row["schedules"].keys()
    assert "ms" in columns[PIPELINES].columns[1].cell(row)
    assert len(list(judge([row | {"tiny": False}]))) == 5


def test_the_optimizers_plans_keep_their_memory() -> None:
    limits = [
        planned(name, Profile(STAGES, 2), 4).problem.memory_limit for name in ("zb-1p", "zb-2p")
    ]
    assert limits == [(6.0, 6.0), (12.0, 12.0)]


def test_without_a_gpu_the_full_size_is_refused() -> None:
    case = next(case for case in cases("large") if case.name == "8 ranks")
    assert measure_row("one_gpu", case)["failed"] == "InputError: device: expected a GPU, got none"
