"""Runs the training script and its port in the same processes, alternating between their steps."""

from __future__ import annotations

import os
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeloom import Profile, StageProfile, build, dump_schedule, write_json
from pipeloom.runtime import launch_ranks

from ..clocks import WARMUP, Span, in_turn, medians
from . import FAMILIES, ported, script

RANKS = 4
ROUNDING = 1e-5
"""The relative tolerance for losses: float32 numbers summed in another order, over several
steps."""
Measured = tuple[dict[str, list[Span]], dict[str, list[float | None]]]
"""The spans of the steps, and the losses, on one rank: both by the name of the script."""


def compared(name: str, folder: str) -> dict[str, Any]:
    """The median step times and CPU times in milliseconds, and a comparison of the losses.

    ``name``: a schedule of torch; ``folder``: where the schedule's file is written. A step lasts
    from the start of the first rank to the end of the last one.
    """
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
    planned = build(FAMILIES[name], Profile((stage,) * RANKS, RANKS, 0.05), script.MICROBATCHES)
    write_json(dump_schedule(planned), str(Path(folder, f"{name}.json")))
    ranks = [*launch_ranks(_on_a_rank, RANKS, (name, folder), timeout=3600).values()]
    row: dict[str, Any] = {"schedule": name, "changed_lines": changed_lines()}
    for which in ("ours", "torch"):
        taken, cpu = medians([spans[which] for spans, _ in ranks])
        row |= {f"{which}_ms": taken, f"{which}_cpu_ms": cpu}
    ours, theirs = (
        [loss for _, losses in ranks for loss in losses[which] if loss is not None]
        for which in ("ours", "torch")
    )
    apart = max(abs(x - y) / y for x, y in zip(ours, theirs, strict=True))
    return row | {
        "ratio": row["ours_ms"] / row["torch_ms"],
        "cpu_ratio": row["ours_cpu_ms"] / row["torch_cpu_ms"],
        "losses": ours,
        "losses_apart": apart,
        "losses_equal": apart <= ROUNDING,
    }


def changed_lines() -> int:
    """The number of lines that differ between the script and its port."""
    text = Path(str(script.__file__)).read_text("utf-8")
    before, after = text.splitlines(), ported.ported(text).splitlines()
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for tag, a, b, c, d in blocks if tag != "equal")


def _on_a_rank(name: str, folder: str) -> Measured:
    """Train with both scripts, and return the spans and losses of this rank.

    ``name``: a schedule of torch. ``folder``: contains the file of the corresponding schedule.
    """
    os.chdir(folder)
    torch.set_num_threads(1)
    scripts = {"torch": script.train(name), "ours": ported.train(name)}
    losses: dict[str, list[float | None]] = {which: [] for which in scripts}

    def step(which: str) -> None:
        losses[which].append(next(scripts[which]))

    runs = {which: partial(step, which) for which in scripts}
    return in_turn(runs, script.STEPS - WARMUP), losses
