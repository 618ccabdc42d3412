"""WeiPipe's published tables: 21 rows with five schemes each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

NODE = 8  # GPUs


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, with figures of each scheme.

    ``throughput``: tokens/s per GPU, and ``memory``: GB, both by scheme; None if the scheme ran out
    of memory. ``winner``: the fastest scheme.
    """

    table: str
    gpus: int
    layers: int
    hidden: int
    sequence: int
    microbatch: int
    winner: str
    throughput: dict[str, float | None]
    memory: dict[str, float | None]

    def __str__(self) -> str:
        return f"{self.table} H={self.hidden} S={self.sequence} G={self.microbatch}"

    @property
    def over_pcie(self) -> bool:
        """Whether the GPUs of a node are connected by PCIe; if not, they are connected by
        NVLink."""
        return "pcie" in self.table


def load_rows() -> list[Row]:
    data = json.loads(Path(__file__).with_name("weipipe.json").read_text(encoding="utf-8"))
    return [Row(**row) for row in data["rows"]]
