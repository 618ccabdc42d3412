"""Assumptions, with their sources, that predictions need but WeiPipe's published tables do not
state."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Assumptions:
    """One set of assumptions for all 21 rows of the tables; ``assumed.json`` explains each of them.

    ``overlap`` and ``recompute`` are sets of names of schemes. Bandwidths are in GB/s per
    direction.
    """

    rounds: int
    recompute: frozenset[str]
    overlap: frozenset[str]
    zero_bubble_layer_tokens: int
    layers_on_8: int
    matrix_teraflops: float
    attention_teraflops: float
    memory: float
    nvlink: float
    pcie: float
    ethernet: float
    node_wire: float | None
    held_bytes: float
    capacity: float


_VALUES: dict[str, Any] = {
    name: each["value"]
    for name, each in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}
_SETS = {name: frozenset(_VALUES[name]) for name in ("recompute", "overlap")}
BASE = Assumptions(**_VALUES | _SETS)
