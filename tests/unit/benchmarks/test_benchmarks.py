"""``python -m benchmarks`` on a copy of its folder: comparing, recording, and writing pages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
WRITTEN = (
    "README.md", "docs/results.md", "docs/images/frontier-6.2b.svg",
    "planner/clusters/calibrated.json",
)  # fmt: skip
PLAYED = """
import json
from benchmarks.rivals.readiness import *
for spread, (name, lists) in product(("0 %", "30 %"), lists_of(4, 1, 2, 0.05, False).items()):
    for way, policy in ({"": BFW} if name == "bfw" else {"": FIXED, **POLICIES}).items():
        start, end = lists.run(factors(spread, (3, *lists.owner.shape), 7), policy)
        rows = np.stack([lists.owner[tuple(lists.ops[1:])], start, end, *lists.ops], axis=1)
        print(json.dumps([spread, name, way, rows.tolist()]))
"""
RECORD, SENT = "benchmarks/published/record.json", ("published/weipipe sent", "--workers", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in WRITTEN:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def bench(folder: Path, *words: str, code: int | None = 0) -> str:
    """The output of the command, run in ``folder``."""
    path = os.pathsep.join(map(str, (folder, ROOT / "src", ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / RECORD).read_text())
    return found


def rows_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if row["part"] == "weipipe sent"]


def test_a_figure_that_differs_or_is_not_recorded_is_named_and_recorded_once(folder: Path) -> None:
    known = record(folder)
    changed, missing, *_ = rows_of(known)
    changed["turn"] += 1
    known["rows"].remove(missing)
    known["origins"] = [{}] * len(known["origins"])
    (folder / RECORD).write_text(json.dumps(known))
    said = bench(folder, *SENT, "--check", code=1)
    assert f"{changed['case']}: turn: 37.0 recorded, 36.0 now" in said
    assert f"{missing['case']}: not recorded" in said
    assert "OLD CODE" in said
    assert "\n2 differ" in said
    assert "4 cases" in bench(folder, *SENT, "--resume")
    assert [row["turn"] for row in rows_of(record(folder))] == [36.0] * 4
    assert "0 cases" in bench(folder, *SENT, "--resume")


def test_pages_are_written_from_records_of_known_cases(folder: Path) -> None:
    page = folder / "benchmarks" / "published" / "README.md"
    whole = page.read_text()
    page.write_text(whole.replace("48 of 48 cells", "47 of 48 cells"))
    assert "wrote benchmarks/published/README.md" in bench(folder, "--report")
    assert page.read_text() == whole
    page.write_text(whole.replace("48 of 48 cells", "47 of 48 cells"))
    known = record(folder)
    rows_of(known)[0]["case"] = "nothing"
    (folder / RECORD).write_text(json.dumps(known))
    said = bench(folder, "--report", "--check", code=1)
    assert "published/README.md: differs" in said
    assert "published: weipipe sent: nothing: recorded, and no case" in said


def test_a_name_that_is_none_is_refused() -> None:
    assert "NAME: expected one of published, " in bench(ROOT, "publishd", code=2)


def makespan(rows: list[list[float]]) -> float:
    """Of ops (rank, start, end, kind, stage, microbatch) of 8 microbatches on 4 ranks, after checks
    of everything. M_B is 1 on a rank with one stage, and M_W .432 of it."""
    done = {("FBWB"[int(k)], s, j): (end, rank) for rank, _, end, k, s, j in rows}
    stages = 1 + int(max(row[4] for row in rows))
    assert len(rows) == len(done) == len({kind for kind, *_ in done}) * stages * 8
    for _, own in groupby(sorted(rows), key=lambda row: row[0]):
        free = held = 0.0
        for rank, start, end, kind, s, j in own:
            needed = {0: [("F", s - 1)], 2: [("B", s)]}.get(int(kind), [("F", s), ("B", s + 1)])
            inputs = [done[k, t, j] for k, t in needed if 0 <= t < stages]
            came = [end + 0.05 * 29.718 * (source != rank) for end, source in inputs]
            assert start == pytest.approx(max(free, *came, 0.0), abs=1e-6)
            free, held = end, held + 4 / stages * (1, -0.568, -0.432, -1)[int(kind)]
            assert held <= 4 + 1e-9
    return max(row[2] for row in rows)


def test_ranks_that_run_what_is_ready_keep_to_inputs_and_memory() -> None:
    """At planned times they take hardly longer: an op may begin before an earlier one can."""
    done = subprocess.run([sys.executable, "-c", PLAYED], cwd=ROOT, capture_output=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    spans = {(spread, name, way): makespan(rows) for spread, name, way, rows in found}
    assert all(spans["0 %", n, w] <= 1.1 * spans["0 %", n, ""] for _, n, w in spans)
    assert len(spans) == 42


@pytest.mark.slow
def test_ranks_that_share_a_device_have_one_processs_gradients_and_plans_to_compare() -> None:
    said = bench(ROOT, "one_gpu", "--size", "small")
    assert "met    Gradients of zb-v on two ranks" in said
    assert "failed" not in said


@pytest.mark.slow
def test_a_ring_of_namespaces_trains_all_schemes_alike_and_is_removed() -> None:
    said = bench(ROOT, "slow_link/ring", "--size", "small", code=None)
    if "expected root" in said or "ip netns" in said or "not found" in said:
        pytest.skip(said.splitlines()[-1])
    assert "met    Losses of all schemes agree" in said
    assert "met    Every link carries" in said
