"""``python -m benchmarks`` on a copy of its folder: comparing, recording, and writing pages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
WRITTEN = (
    "README.md", "docs/results.md", "docs/images/frontier-6.2b.svg",
    "planner/clusters/calibrated.json",
)  # fmt: skip
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
