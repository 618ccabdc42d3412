"""The benchmark's table, and whether its targets are met."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..markdown import markdown

Row = Mapping[str, Any]
HEADER = (
    "stage", "way", "F ms", "B ms", "W ms", "B + W ms", "BW ms", "(B + W) / BW of eager",
    "before B", "between B and W",
)  # fmt: skip


def table(rows: Iterable[Row]) -> list[str]:
    """Lines of Markdown; in brackets the ratio of the processor's times."""
    lines, rows = [], list(rows)
    cpu = {row["stage"]: row["cpu_bw"] for row in rows if row["way"] == "eager"}
    for row in rows:
        times = [_number(row.get(kind)) for kind in ("f", "b", "w", "b_w", "bw")]
        ratio = _number(row.get("of_eager"))
        ratio += f" ({row['cpu_b_w'] / cpu[row['stage']]:.3f})" if ratio else ""
        held = [_kib(row.get(key)) for key in ("before_b", "between")]
        lines.append([row["stage"], row["way"], *times, ratio, *held])
    return markdown(HEADER, lines)


def judged(rows: Sequence[Row]) -> dict[str, bool]:
    """Whether B and W apart cost no more than the whole, stage by stage."""
    found: dict[str, bool] = {}
    for stage in dict.fromkeys(row["stage"] for row in rows):
        own = {row["way"]: row for row in rows if row["stage"] == stage}
        aten, compiled = own["aten"]["of_eager"], own["inductor"]["of_compiled"]
        found[f"{stage}: aten's B + W at most 1.01 of eager's BW ({aten:.3f})"] = aten <= 1.01
        found[f"{stage}: inductor's at most 1.02 of compiled BW ({compiled:.3f})"] = (
            compiled <= 1.02
        )
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _kib(value: int | None) -> str:
    return "" if value is None else f"{value / 1024:.0f} KiB"
