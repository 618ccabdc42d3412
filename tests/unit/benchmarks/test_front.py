"""The front of the benchmarks: records, tables and pages, and the shape that all of them have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import Case, Column, Row, Table, recording
from benchmarks.__main__ import BENCHMARKS, alike, judged, main
from benchmarks.recording import BEFORE, Record, environment, is_current, words
from benchmarks.table import filled, rendered
from benchmarks.workers import ROOT, load, measure
from tools import size

OLD = {"note": BEFORE, "cpu": "old"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_size_has_the_cases_of_a_smaller_one_and_all_have_names_and_tables(name: str) -> None:
    benchmark = load(name)
    small, usual, large = (
        [(case.part, case.name) for case in benchmark.cases(size)]
        for size in ("small", "usual", "large")
    )
    assert small
    assert set(small) <= set(usual) <= set(large)
    assert len(set(large)) == len(large)
    assert {part for part, _ in large} <= set(benchmark.columns)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_what_is_recorded_is_judged_and_can_be_measured_again(name: str) -> None:
    benchmark, record = load(name), Record.of(name)
    known = {(case.part, case.name) for case in benchmark.cases("large")}
    assert [r["case"] for r in record.rows if (r["part"], r["case"]) not in known] == []
    assert all(0 <= row["origin"] < len(record.origins) for row in record.rows)
    assert [claim.part for claim in judged(benchmark, record.rows) if not claim.words] == []


def test_a_row_takes_the_place_of_the_one_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "HERE", tmp_path)
    (tmp_path / "x").mkdir()
    record, here = Record.of("x"), environment()
    record.add({"part": "b", "case": "1", "cost": 3}, OLD)
    record.add({"part": "a", "case": "1", "cost": 1}, OLD)
    record.add({"part": "b", "case": "1", "cost": 2}, here)
    record.arrange(["a", "b"])
    record.write("x")
    found = Record.of("x")
    assert [(row["part"], row["cost"]) for row in found.rows] == [("a", 1), ("b", 2)]
    assert [words(found.origin(row)) for row in found.rows] == [BEFORE, words(here)]
    assert is_current(found.origins[1], here, ["solver"])
    assert not is_current(found.origins[0], here, ["solver"])


def test_a_table_of_groups_has_a_line_for_all() -> None:
    rows: list[Row] = [{"kind": kind, "gap": gap} for kind, gap in (("v", 1), ("w", 2), ("v", 3))]
    columns = [Column("kind", "kind"), Column("worst", lambda own: max(r["gap"] for r in own))]
    table = Table(columns, by=lambda row: row["kind"], total=True)
    assert rendered(table, rows)[2:] == ["| v | 3 |", "| w | 2 |", "| all | 3 |"]


def test_a_passage_of_a_page_is_written_again_and_nothing_else_is() -> None:
    page = "a\n<!-- rows x y z -->\nold\n<!-- end -->\nb\n"
    new = filled(page, lambda kind, given: [kind, *given])
    assert new == "a\n<!-- rows x y z -->\n\nrows\nx\ny\nz\n\n<!-- end -->\nb\n"
    assert filled(new, lambda kind, given: [kind, *given]) == new


def test_figures_are_alike_to_a_millionth_and_seconds_do_not_count() -> None:
    before = {"cost": 100.0, "seconds": 1.0, "cells": [{"gap": 0.0}]}
    assert alike(before, {"cost": 100.00001, "seconds": 9.0, "cells": [{"gap": 1e-9}]})
    assert not alike(before, {"cost": 100.1, "seconds": 1.0, "cells": [{"gap": 0.0}]})
    assert not alike(before, {"cost": 100.0, "cells": []})


def test_a_case_that_fails_is_a_claim_that_is_not_met() -> None:
    case = Case("table8", "none", {"row": None})
    row = measure("published", case)
    assert row["failed"].startswith("AttributeError")
    assert json.loads(json.dumps(row)) == row
    assert [claim.met for claim in judged(load("published"), [row])] == [False]


def test_pages_are_those_of_the_records() -> None:
    assert main(["--report", "--check"]) == 0


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_page_is_short(name: str) -> None:
    assert size.words((ROOT / "benchmarks" / name / "README.md").read_text()) <= 200


def test_the_page_of_results_has_the_counts_of_random_checks() -> None:
    folders = ("fuzz", "property/small_exact", "property/random_instances")
    fuzz, small, drawn = (
        json.loads((ROOT / "tests" / each / "record.json").read_text()) for each in folders
    )
    bounds = sum(kind["bounds"] for kind in small["kinds"].values())
    page = (ROOT / "docs" / "results.md").read_text()
    for count in (fuzz["cases"], small["count"], bounds, drawn["schedules_verified"]):
        assert f"{count:,} " in page
    assert fuzz["faults"] == small["wrong"] == drawn["faults"] == []
