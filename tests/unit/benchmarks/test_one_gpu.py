"""The parts of the benchmark on one GPU, as far as a CPU can run them, and how they are told and
judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.one_gpu import checks, plans
from benchmarks.one_gpu.checks import uniform
from benchmarks.one_gpu.part import run
from benchmarks.one_gpu.pipelines import row
from benchmarks.one_gpu.plans import held_at_most, planned
from benchmarks.one_gpu.running import run_steps
from benchmarks.one_gpu.sizes import SMALL
from benchmarks.one_gpu.telling import telling, told
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import build_family


def of(name: str, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "told"
    run(name, replace(SMALL, rows=8), "cpu", telling(path))
    return told(path)


def test_b_and_w_apart(tmp_path: Path) -> None:
    figures = of("split", tmp_path)["32"]
    assert figures["ratio"] > 0
    assert min(figures["bw_ms"], figures["b_ms"], figures["w_ms"]) > 0


def test_gradients_are_one_processs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FAMILIES", ("zb-v",))
    found = of("gradients", tmp_path)
    assert [*found] == ["zb-v"]
    assert found["zb-v"] < 1e-12


def test_a_row_of_real_steps() -> None:
    program = uniform("zb-h1", 2, 4)
    steps = run_steps(program, SMALL.model, 0, 1, "cpu")
    found = row(program.schedule, steps)
    assert json.loads(json.dumps(found))["ranks"] == 2
    assert found["measured_ms"] > 0
    assert found["measured_ms"] == pytest.approx(1e3 * steps.seconds[0], rel=0.9)
    assert 0 <= found["host"] < 1
    assert len(found["losses"]) == len(found["step_ms"]) == 1


STAGES = (StageProfile(1.0, 1.0, 1.0, 3.0, 2.0),) * 2


def test_the_optimizers_plans_keep_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = Profile(STAGES, 2)
    first, second = (planned(SMALL, name, profile) for name in ("zb-1p", "zb-2p"))
    assert first.problem.memory_limit == (6.0, 6.0)
    assert second.problem.memory_limit == (12.0, 12.0)

    def missing(*_: object) -> None:
        raise ModuleNotFoundError("as on a machine without it", name="ortools.sat")

    monkeypatch.setattr(plans, "optimized", missing)
    handmade = build_family("zb-h1", profile, 4)
    assert planned(SMALL, "zb-1p", profile).ops(0) == handmade.ops(0)


def test_what_is_held_at_once() -> None:
    schedule = planned(SMALL, "1f1b", Profile(STAGES, 2))
    # rank 0 has two microbatches under way, rank 1 one
    assert held_at_most(schedule) == 9.0
