"""Calibration recovers the rates behind synthetic measurements, and keeps priors otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pipeloom
from pipeloom.planner import Efficiency, preset

TRUE = Efficiency(gemm=0.55, memory=0.7, kernel_ms=0.03, link=0.6, context_gib=2.0)
TRUTH = preset("H200").model_copy(update={"efficiency": TRUE})


def predicted(run: dict[str, Any], cluster: Any) -> pipeloom.Prediction:
    keys = {key: value for key, value in run.items() if key not in ("model", "gpu")}
    return pipeloom.predict(run["model"], cluster=cluster, **keys)


def measured(run: dict[str, Any]) -> dict[str, Any]:
    """The run with the step time and memory that follow from the rates TRUE."""
    found = predicted(run, TRUTH)
    return run | {"step_ms": found.step_ms, "memory_gib": found.memory_gib}


RUNS: list[dict[str, Any]] = [
    {"model": model, "gpu": "H200", "gpus": gpus, "tp": tp, "pp": pp, "seq": 2048}
    | {"micro_batch": size, "global_batch": 32}
    for model in ("llama-3-8b", "opt-1.3b")
    for gpus, tp, pp in ((8, 1, 1), (8, 2, 2), (8, 8, 1), (4, 1, 4))
    for size in (1, 4)
]


def test_rates_behind_measurements_are_found() -> None:
    found = pipeloom.calibrate("H200", {"runs": [*map(measured, RUNS[::2] + RUNS[1::4])]})
    assert np.abs(found.residuals).max() < 0.05
    assert found.cluster.efficiency.gemm == pytest.approx(TRUE.gemm, rel=0.08)
    assert found.document["format"] == "pipeloom.cluster"
    for run in RUNS[3::4]:  # not used for the fit
        there, held = predicted(run, TRUTH), predicted(run, found.document)
        assert held.step_ms == pytest.approx(there.step_ms, rel=0.06)
        assert held.memory_gib == pytest.approx(there.memory_gib, rel=0.05)


def test_what_measurements_say_nothing_of_stays_usual() -> None:
    found = pipeloom.calibrate("H200", {"runs": [*map(measured, RUNS[:2])]})
    for rate in ("gemm_narrow", "attention_ring"):
        usual = getattr(Efficiency(), rate)
        assert getattr(found.cluster.efficiency, rate) == pytest.approx(usual)
    assert found.notes == ()
    off = pipeloom.calibrate("H200", {"runs": [RUNS[0] | {"step_ms": 1e-3}]})
    assert "off by a factor of" in off.notes[0]
    assert "note: the fit is not to be trusted" in str(off)
