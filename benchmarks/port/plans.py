"""The schedule files of the port: of each of torch's schedules our family of the same shape."""

from __future__ import annotations

from pathlib import Path

import pipeloom

from .script import MICROBATCHES

RANKS = 4
FAMILIES = {"1F1B": "1f1b", "Interleaved1F1B": "interleaved-1f1b:2", "ZBVZeroBubble": "zb-v"}


def write_plans(folder: Path) -> None:
    """``1F1B.json`` and so on."""
    stage = pipeloom.StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
    profile = pipeloom.Profile((stage,) * RANKS, RANKS, t_comm=0.05)
    for name, family in FAMILIES.items():
        schedule = pipeloom.build(family, profile, MICROBATCHES)
        pipeloom.write_json(pipeloom.dump_schedule(schedule), str(folder / f"{name}.json"))
