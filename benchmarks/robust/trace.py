"""Each measured step of a trace, and what the others predict of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeloom.ir.cost.spread import sample_steps
from pipeloom.planner.build import build
from pipeloom.planner.measured.profile import profile_from
from pipeloom.planner.measured.ratios import measured_ratios

INSIDE = (0.025, 0.975)


def left_out(path: str) -> list[dict[str, Any]]:
    """The time of each step, and its distribution by the profile and ratios of the others."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    return [_predicted(document, name) for name in document["iterations"]]


def _predicted(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    steps = dict(document["iterations"])
    ranks = steps.pop(name)
    starts, ends = (
        [rank[f"{kind}_{edge}"] for rank in ranks for kind in ("fwd", "bwd")]
        for edge in ("start", "end")
    )
    took = max(map(max, ends)) - min(map(min, starts))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "others.json"
        file.write_text(json.dumps({**document, "iterations": steps}), encoding="utf-8")
        profile = profile_from(file, warmup=0).profile
        ratios = measured_ratios(file, warmup=0)
    schedule = build("1f1b", profile, len(starts[0]), memory_limit=float("inf"))
    found = sample_steps(schedule, ratios)
    return {
        "step": name,
        "measured": took,
        "mean": found.mean,
        "low": found.quantile(INSIDE[0]),
        "high": found.quantile(INSIDE[1]),
        "percentile": found.rank_of(took),
    }


def trace_table(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each step."""
    if not steps:
        return []
    lines = ["| step | measured | mean predicted | middle 95 % | percentile |"]
    lines.append("| ---: | ---: | ---: | --- | ---: |")
    return lines + [
        f"| {one['step']} | {one['measured']:.1f} | {one['mean']:.1f} | {one['low']:.1f} to "
        f"{one['high']:.1f} | {one['percentile']:.0%} |"
        for one in steps
    ]


def outside(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines on steps that the others do not cover."""
    for one in steps:
        if not INSIDE[0] <= one["percentile"] <= INSIDE[1]:
            yield f"step {one['step']}: outside of what the others predict"
