"""Whole training runs on spawned processes, and on this one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.ir.formats import dump_program, load_schedule
from pipeloom.ir.formats.atomic_write import write_json
from pipeloom.runtime.train.settings import RunSettings
from pipeloom.runtime.train.train import run_program, train
from tests.support.models import TinyTransformer, mean_losses
from tests.support.schedules import schedule

RANKS, MICROBATCHES, STEPS = 2, 3, 4
SOURCE = "tests.support.models:TinyTransformer"


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = str(tmp_path / "program.json")
    plan = schedule("zb-h1", RANKS, MICROBATCHES)
    write_json(dump_program(compile_schedule(plan, tied=[(0, 1)])), path)
    return path


@pytest.fixture
def expected() -> list[float]:
    return mean_losses(TinyTransformer(), RANKS, MICROBATCHES, STEPS)


def test_a_run_follows_one_processs_losses(
    program: str, expected: list[float], tmp_path: Path
) -> None:
    trace = str(tmp_path / "measured.json")
    result = run_program(program, SOURCE, RunSettings(steps=STEPS), trace_path=trace)
    assert result is not None
    assert result.losses == pytest.approx(expected, rel=1e-12)
    assert expected[-1] < expected[0]
    assert len(result.seconds) == STEPS
    assert all(peak > 0 for peak in result.peak_memory)
    measured = load_schedule(trace)
    assert measured.known_timing.makespan <= 1e3 * max(result.seconds)
    plan = schedule("zb-h1", RANKS, MICROBATCHES)
    assert [measured.ops(r) for r in range(RANKS)] == [plan.ops(r) for r in range(RANKS)]


def test_the_dtype_is_the_settings() -> None:
    """One rank needs no processes."""
    plan = compile_schedule(schedule("1f1b", 1, 2))
    result = train(plan, Untied(), RunSettings(steps=2, dtype="float32", seed=3))
    wide = train(plan, Untied(), RunSettings(steps=2, dtype="float64", seed=3))
    assert result.losses == pytest.approx(wide.losses, rel=1e-4)
    assert result.losses != wide.losses
    assert 1.9 < wide.peak_memory[0] / result.peak_memory[0] <= 2.0


class Untied(TinyTransformer):
    """One stage of a model without a tie."""

    def stages(self, count: int):  # type: ignore[no-untyped-def]
        return [self._whole]

    def _whole(self) -> torch.nn.Module:
        return torch.nn.Sequential(*(make() for make in super().stages(2)))

    def tied(self, count: int):  # type: ignore[no-untyped-def]
        return []
