"""The page of the benchmark shows what is recorded, and says of it what is true."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import post_validation
from benchmarks.post_validation.steps import Case, Row, table

FOLDER = Path(post_validation.__file__).parent


def recorded() -> list[Row]:
    rows = json.loads((FOLDER / "results/post_validation.json").read_text())["rows"]
    return [
        Row(
            Case(row["family"], row["microbatches"]),
            row["planned_ms"] / 1e3,
            {name: ms / 1e3 for name, ms in row["step_ms"].items()},
        )
        for row in rows
    ]


def test_the_page_has_the_recorded_table() -> None:
    assert "\n".join(table(recorded())) in (FOLDER / "README.md").read_text()


def test_stepping_ahead_costs_nothing_to_be_seen_and_waiting_zb_h2_its_gain() -> None:
    for row in recorded():
        assert row.seconds["ahead"] < 1.01 * row.seconds["none"]
    steps = {row.case.family: row.seconds for row in recorded()}
    assert steps["zb-h2"]["ahead"] < steps["zb-h1"]["ahead"]
    assert steps["zb-h2"]["waiting"] > 0.99 * steps["zb-h1"]["waiting"]
