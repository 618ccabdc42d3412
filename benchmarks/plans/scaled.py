"""The best plans of one model on 8 to 4,096 GPUs, with the causes of their step times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pipeloom import plan

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain

PART = "scaled plans"
MODEL, GPU, SEQUENCE = "llama-3-8b", "H100", 8192
GPUS = [2**power for power in range(3, 13)]
WEAK, STRONG = 2, 1024
"""Sequences per step: for each GPU (weak scaling), or for all GPUs together (strong scaling).

Strong scaling is one ``plan`` for each number of GPUs.
"""
WORK = 100.0
"""The work limit of each plan, in millions of simulated ops."""


def cases(size: Size) -> Iterator[Case]:
    for kind in ("weak", "strong"):
        for gpus in GPUS if size != "small" else []:
            yield Case(PART, f"{kind} {gpus}", {"kind": kind, "gpus": gpus})


def measure(case: Case) -> Row:
    kind, gpus = case.given["kind"], case.given["gpus"]
    batch = WEAK * gpus if kind == "weak" else STRONG
    found = plan(MODEL, gpu=GPU, scale=[gpus], global_batch=batch, seq=SEQUENCE, work_limit=WORK)
    (point,) = found.to_dict()["points"]
    settings = {"scaling": kind, "work": WORK, "seq": SEQUENCE}
    return settings | {key: value for key, value in point.items() if key != "efficiency"}


def judge(rows: Rows) -> Iterator[Claim]:
    missing = [row["case"] for row in rows if row["plan"] is None]
    words = f"Plans are found in {len(rows) - len(missing)} of {len(rows)} cases, up to 4,096 GPUs."
    yield Claim(PART, words, not missing)


def _of_plan(key: str) -> Callable[[Row], Any]:
    return lambda row: row["plan"] and row["plan"][key]


def _share(*kinds: str) -> Callable[[Row], float]:
    def value(row: Row) -> float:
        total: float = sum(row["parts_ms"].values())
        return float(sum(row["parts_ms"].get(kind, 0.0) for kind in kinds)) / total

    return value


columns = {
    PART: Table(
        *plain({"scaling": "scaling", "GPUs": "gpus", "batch": "global_batch"}),
        Column("plan", _of_plan("name")),
        Column("tokens/s/GPU", _of_plan("tokens_per_s_per_gpu"), ".0f"),
        Column("compute", _share("compute"), ".1%"),
        Column("averaging of gradients", _share("dp"), ".1%"),
        Column("bubble and links", _share("bubble", "links", "uneven"), ".1%"),
    )
}
