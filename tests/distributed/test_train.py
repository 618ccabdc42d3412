"""Whole training runs on spawned processes, and on this one."""

from __future__ import annotations

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.runtime import RunSettings
from pipeloom.runtime.train.train import train
from tests.support.models import TinyTransformer
from tests.support.schedules import schedule


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
