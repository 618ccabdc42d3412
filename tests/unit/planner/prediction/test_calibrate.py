"""Calibration finds the rates behind made-up measurements, and stays at what is usual elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pipeloom
from pipeloom.planner import MeasuredRow
from pipeloom.planner.clusters.efficiency import PRIORS
from pipeloom.planner.prediction.fit import predicted
from tests.support.inner import Efficiency, preset, read_rows

TRUE = replace(
    Efficiency(), gemm=0.55, memory=0.7, kernel_ms=0.03, link=0.6, context_gib=2.0, shapes={}
)
RUNS: list[dict[str, Any]] = [
    {"model": model, "gpu": "H200", "gpus": gpus, "tp": tp, "pp": pp, "seq": 2048, "step_ms": 1.0}
    | {"micro_batch": size, "global_batch": 32}
    for model in ("llama-3-8b", "opt-1.3b")
    for gpus, tp, pp in ((8, 1, 1), (8, 2, 2), (8, 8, 1), (4, 1, 4))
    for size in (1, 4)
]


def document(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """With the step times and memory that the rates TRUE give."""
    rows = read_rows({"runs": runs})
    true = [replace(_at(row).cluster, efficiency=TRUE) for row in rows]
    times = predicted(rows, TRUE)
    peaks = [
        pipeloom.predict(run["model"], cluster=at, **_keys(run)).memory_gib
        for run, at in zip(runs, true, strict=True)
    ]
    known = zip(runs, times, peaks, strict=True)
    return {"runs": [run | {"step_ms": t, "memory_gib": m} for run, t, m in known]}


def _at(row: MeasuredRow) -> Any:
    return row.setup


def _keys(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in {"model", "step_ms", "gpu"}}


def test_rates_behind_measurements_are_found() -> None:
    made = document(RUNS)
    half = {"runs": made["runs"][::2] + made["runs"][1::4]}
    found = pipeloom.calibrate(half)
    assert np.abs(found.residuals).max() < 0.05
    assert found.cluster.efficiency.gemm == pytest.approx(TRUE.gemm, rel=0.08)
    held = read_rows({"runs": made["runs"][3::4]})
    off = predicted(held, found.cluster.efficiency) / [row.step_ms for row in held] - 1
    assert np.abs(off).max() < 0.06
    assert found.document["format"] == "pipeloom.cluster"
    assert pipeloom.predict("llama-3-8b", cluster=found.document, gpus=8).step_ms > 0


def test_what_measurements_say_nothing_of_stays_usual() -> None:
    found = pipeloom.calibrate(document(RUNS[:2]))
    assert found.cluster.efficiency.gemm_narrow == pytest.approx(PRIORS["gemm_narrow"].usual)
    assert found.cluster.efficiency.attention_ring == pytest.approx(PRIORS["attention_ring"].usual)


def test_throughput_is_as_good_as_a_time() -> None:
    run = RUNS[0]
    tokens = run | {"step_ms": None, "tokens_per_s_per_gpu": 32 * 2048 / 8 / 2.5}
    assert read_rows({"runs": [tokens]})[0].step_ms == pytest.approx(2500)


def test_a_time_and_its_throughput_may_both_be_told() -> None:
    both = RUNS[0] | {"step_ms": 2500, "tokens_per_s_per_gpu": 32 * 2048 / 8 / 2.6}
    assert read_rows({"runs": [both]})[0].step_ms == 2500


def test_a_fit_that_is_far_off_says_so() -> None:
    assert pipeloom.calibrate(document(RUNS[:2])).notes == ()
    found = pipeloom.calibrate({"runs": [RUNS[0] | {"step_ms": 1e-3}]})
    assert "off by a factor of" in found.notes[0]
    assert "note: the fit is not to be trusted" in str(found)


def test_presets_without_a_calibration_are_usual() -> None:
    assert preset("MI355X").efficiency == Efficiency()
