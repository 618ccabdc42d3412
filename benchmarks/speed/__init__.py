"""How fast the simulator, the import, a command, a first schedule and a proof are."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part
from .simulator import simulated

ROOMS = ("ir", "solver", "planner", "cli")
SIMULATOR, START = "simulator", "start"
REPEATS, STARTS = 301, 5
TARGET_OPS, TARGET_MS = 40e6, 1.0
PROFILE = str(Path(__file__).parents[2] / "examples" / "profiles" / "zb-6.2b.json")
PIPELOOM = ["-m", "pipeloom"]
LINES = {
    "import": ["-c", "import pipeloom"],
    "a command": [*PIPELOOM, "--version"],
    "a first schedule": [*PIPELOOM, "build", "zb-h1", PROFILE, "-m", "24", "--json"],
    "a proof": [*PIPELOOM, "optimize", PROFILE, "-m", "24", "--placement", "linear", "--json"],
}


def cases(size: Size) -> Iterator[Case]:
    yield Case(SIMULATOR, "32 x 256", timed=True)
    for name in LINES:
        yield Case(START, name, timed=True)


def measure(case: Case) -> Row:
    return simulated(REPEATS) if case.part == SIMULATOR else _started(LINES[case.name])


def _started(line: list[str]) -> Row:
    """Seconds of a fresh process, compiled kernels in their cache: median and least."""
    taken = []
    for _ in range(STARTS + 1):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *line], check=True, capture_output=True)
        taken.append(time.perf_counter() - begin)
    found = sorted(taken[1:])
    return {"starts": STARTS, "seconds": statistics.median(found), "least_seconds": found[0]}


def judge(rows: Rows) -> Iterator[Claim]:
    for row in of_part(rows, SIMULATOR):
        met = row["ops_per_second"] >= TARGET_OPS and row["median_ms"] < TARGET_MS
        words = (
            f"The simulator times {row['ops_per_second'] / 1e6:.0f} million ops a second; a "
            f"schedule of {row['ops']:,} takes {row['median_ms']:.2f} ms."
        )
        yield Claim(SIMULATOR, words, met)


columns = {
    SIMULATOR: Table(
        [
            Column("ranks x microbatches", "case"),
            Column("ops", "ops", ",d"),
            Column("median ms", "median_ms", ".3f"),
            Column("best ms", "best_ms", ".3f"),
            Column("whole simulate(), ms", "simulate_ms", ".2f"),
            Column("million ops/s", lambda row: row["ops_per_second"] / 1e6, ".1f"),
        ]
    ),
    START: Table(
        [
            Column("process", "case"),
            Column("median s", "seconds", ".2f"),
            Column("least s", "least_seconds", ".2f"),
        ]
    ),
}
