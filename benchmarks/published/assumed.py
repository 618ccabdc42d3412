"""Assumptions of the predictions that the published tables do not state, and their sources."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Assumptions:
    """One set for all 21 rows; ``assumed.json`` says where each comes from.

    ``overlap`` and ``recompute`` name schemes; bandwidths are of one direction, in GB/s.
    """

    rounds: int
    recompute: frozenset[str]
    overlap: frozenset[str]
    zero_bubble_layer_tokens: int
    layers_on_8: int
    matrix_teraflops: float
    attention_teraflops: float
    memory: float | None
    nvlink: float
    pcie: float
    ethernet: float
    node_wire: float | None
    held_bytes: float
    capacity: float


SOURCES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
"""Of each assumption its value, what it is, where it comes from, and others that are tried."""


_VALUES: dict[str, Any] = {name: each["value"] for name, each in SOURCES.items()}
_SETS = {name: frozenset(_VALUES[name]) for name in ("recompute", "overlap")}
BASE = Assumptions(**_VALUES | _SETS)
EVERYWHERE = frozenset({"1F1B", "ZB1", "ZB2", "FSDP", "WeiPipe"})


def variations() -> list[tuple[str, Assumptions]]:
    """Each assumption changed alone, and what it is changed to in words."""
    changed = [
        (f"{name} {'none' if value is None else value}", replace(BASE, **{name: value}))
        for name, each in SOURCES.items()
        for value in each["others"]
    ]
    overlap, both = BASE.overlap, {"1F1B", "ZB1", "ZB2"}
    sets = {
        "FSDP overlaps": replace(BASE, overlap=overlap | {"FSDP"}),
        "1F1B and zero bubble overlap": replace(BASE, overlap=overlap | both),
        "WeiPipe does not overlap": replace(BASE, overlap=frozenset()),
        "nobody recomputes": replace(BASE, recompute=frozenset()),
        "zero bubble recomputes, too": replace(BASE, recompute=EVERYWHERE),
    }
    return [*sets.items(), *changed]
