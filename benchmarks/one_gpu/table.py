"""Results of the parts as a table, and held against the targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from ..markdown import markdown
from .plans import NAMES

Parts = Mapping[str, Mapping[str, Any]]
Row = Mapping[str, Any]

PASSES_WEIGHTS = ("weipipe-interleave",)
ALIKE = 0.01  # plans that differ by less have no order


def rows(parts: Parts) -> Iterator[tuple[str, str, Row]]:
    """Part, schedule and figures of each that was measured."""
    for part, told in parts.items():
        for name in (*NAMES, "tuned"):
            if part.startswith("ranks-") and "measured_ms" in told.get(name, {}):
                yield part, name, told[name]


def render(parts: Parts) -> str:
    head = [
        "ranks", "schedule", "planned ms", "measured ms", "measured / planned", "on own times",
        "host", "peak / planned", "allocated / planned", "step ms",
    ]  # fmt: skip
    lines = []
    for part, name, row in rows(parts):
        steps = sorted(row["step_ms"])
        lines.append(
            [
                part.removeprefix("ranks-"),
                name,
                f"{row['planned_ms']:.1f}",
                f"{row['measured_ms']:.1f}",
                f"{row['measured_ms'] / row['planned_ms']:.3f}",
                f"{row['measured_ms'] / row['planned_on_own_times_ms']:.3f}",
                f"{row['host']:.1%}",
                f"{_memory(row):.2f}",
                _allocated(row),
                f"{steps[len(steps) // 2]:.1f}",
            ]
        )
    return "\n".join([*markdown(head, lines), *_others(parts), *_failures(parts)])


def _memory(row: Row) -> float:
    """The rank furthest from its planned peak, as measured over planned."""
    pairs = zip(row["peak"], row["planned_peak"], strict=True)
    return max((peak / plan for peak, plan in pairs if plan), key=lambda r: abs(r - 1), default=1.0)


def _allocated(row: Row) -> str:
    """The device memory that all ranks together took in a step, beside the activations that they
    hold by the plan."""
    if row["allocated"] is None or not row["planned_held"]:
        return "-"
    before, peak = row["allocated"]
    return f"{(peak - before) / row['planned_held']:.2f}"


def _others(parts: Parts) -> Iterator[str]:
    for name, value in parts.get("environment", {}).items():
        yield f"{name}: {value}"
    for part, told in parts.items():
        if part.startswith(("split", "gradients")):
            yield from (f"{part} {name}: {_short(value)}" for name, value in told.items())
        if "tuned" in told and "planned_gain" in told["tuned"]:
            tuned = told["tuned"]
            yield (
                f"{part} tuned: {tuned['measured_gain']:.1%} below 1F1B, planned "
                f"{tuned['planned_gain']:.1%}"
            )


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(v)}" for name, v in value.items())
    return f"{value:.4g}" if isinstance(value, float) else value


def _failures(parts: Parts) -> Iterator[str]:
    for part, told in parts.items():
        for name, value in told.items():
            if isinstance(value, dict) and "failed" in value:
                yield f"FAILED {part} {name}: {value['failed']}"


def judged(parts: Parts) -> dict[str, bool | None]:
    """Each target of issue and README: met by all that was measured; None where nothing was."""
    measured = list(rows(parts))

    def every(holds: Callable[[str, Row], bool]) -> bool | None:
        return all(holds(name, row) for _, name, row in measured) if measured else None

    return {
        "measured step within 3 % of planned": every(
            lambda _, row: abs(row["measured_ms"] / row["planned_ms"] - 1) <= 0.03
        ),
        "schedules in the order of their plans": _ordered(parts),
        "host overhead under 2 %": every(
            lambda name, row: row["host"] < 0.02 or name in PASSES_WEIGHTS
        ),
        "peak memory within 10 % of planned": _all(
            abs(_memory(row) - 1) <= 0.10 for _, name, row in measured if name not in PASSES_WEIGHTS
        ),
        "tuned gains at least 90 % of the plan over 1F1B": _all(
            row["measured_gain"] >= 0.9 * row["planned_gain"]
            for _, name, row in measured
            if name == "tuned" and "planned_gain" in row
        ),
        "(B + W) / BW at most 1.03": _all(
            value["ratio"] <= 1.03
            for value in parts.get("split", {}).values()
            if isinstance(value, dict) and "ratio" in value
        ),
        "gradients are one process's": _all(
            value <= 1e-10
            for name, value in parts.get("gradients", {}).items()
            if isinstance(value, float) and name != "seconds"
        ),
    }


def _all(values: Iterator[bool]) -> bool | None:
    found = list(values)
    return all(found) if found else None


def _ordered(parts: Parts) -> bool | None:
    """Whether of any two schedules of so many ranks the one planned shorter is measured shorter."""
    found = []
    for part in parts:
        times = [
            (row["planned_ms"], row["measured_ms"])
            for other, name, row in rows(parts)
            if other == part and name in NAMES
        ]
        for (plan, took), (plan2, took2) in combinations(times, 2):
            if abs(plan - plan2) > ALIKE * max(plan, plan2):
                found.append((plan < plan2) == (took < took2))
    return all(found) if found else None
