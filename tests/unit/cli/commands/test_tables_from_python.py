"""What ``compare`` and ``sweep`` print is what the functions of their names give."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from tests.support.command_line import Command, layers_document, profile_document

LIMITS = {"0.5": 0.5, "2.5": 2.5, "none": math.inf}
HURRY: dict[str, Any] = {"work_limit": 0.05, "solver": "heuristic"}
CASES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "compare P -m 4 --work-limit 0.05 --solver heuristic --memory-limit 2.5": (
        "stages",
        lambda path: pipeloom.compare(path, 4, memory_limit=2.5, **HURRY),
    ),
    "compare P -m 4 --work-limit 0.05 --solver heuristic --max-layers 5": (
        "layers",
        lambda path: pipeloom.compare(path, 4, max_layers=5, **HURRY),
    ),
    "compare P -m 4 --no-optimizer --objective makespan": (
        "stages",
        lambda path: pipeloom.compare(path, 4, no_optimizer=True, objective="makespan"),
    ),
    "sweep P -m 4 --memory-limits 2.5,0.5,none --work-limit 0.05 --solver heuristic -o DIR": (
        "stages",
        lambda path: pipeloom.sweep(path, 4, LIMITS, output="DIR", **HURRY),
    ),
}


def plain(answer: Any) -> Any:
    """As JSON has it, without how long it took."""
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items() if key != "solve_seconds"}
    return [plain(one) for one in answer] if isinstance(answer, list | tuple) else answer


@pytest.mark.parametrize("line", CASES)
def test_a_command_prints_what_its_function_gives(
    pipeloom: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PIPELOOM_CACHE", raising=False)
    kind, function = CASES[line]
    document = layers_document() if kind == "layers" else profile_document()
    Path("P").write_text(json.dumps(document))
    printed = pipeloom(*line.split(), "-q", "--json").json
    found = function("P")
    assert plain(printed) == plain(found.to_dict())
    table = pipeloom(*line.split(), "-q").out
    assert table.startswith(f"{found}\n")


def test_rows_are_evaluations_and_a_sweep_needs_no_folder() -> None:
    stage = pipeloom.StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
    profile = pipeloom.Profile((stage,) * 2, 2, t_comm=0.1)
    found = pipeloom.sweep(profile, 4, [math.inf, 2.0], **HURRY)
    assert [swept.words for swept in found.limits] == ["2", "none"]
    assert all(isinstance(row, pipeloom.Evaluation) for row in (*found.rows, *found.families))
    assert found.rows[1].cost <= found.rows[0].cost
    assert found.to_dict()["output"] is None
