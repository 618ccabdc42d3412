"""How fast the simulator is."""

from __future__ import annotations

from collections.abc import Iterator

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain
from .simulator import simulated

ROOMS = ("ir",)
PART, REPEATS = "simulator", 301
TARGET_OPS, TARGET_MS = 40e6, 1.0


def cases(size: Size) -> Iterator[Case]:
    yield Case(PART, "32 x 256", timed=True)


def measure(case: Case) -> Row:
    return simulated(REPEATS)


def judge(rows: Rows) -> Iterator[Claim]:
    for row in rows:
        met = row["ops_per_second"] >= TARGET_OPS and row["median_ms"] < TARGET_MS
        words = (
            f"The simulator times {row['ops_per_second'] / 1e6:.0f} million ops a second; a "
            f"schedule of {row['ops']:,} takes {row['median_ms']:.2f} ms."
        )
        yield Claim(PART, words, met)


columns = {
    PART: Table(
        [
            *plain({"ranks x microbatches": "case"}),
            *plain("ops", ",d"),
            *plain({"median ms": "median_ms", "best ms": "best_ms"}, ".3f"),
            *plain({"whole simulate(), ms": "simulate_ms"}, ".2f"),
            Column("million ops/s", lambda row: row["ops_per_second"] / 1e6, ".1f"),
        ]
    )
}
