"""Both scripts in the same processes: a step of one, then a step of the other."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import ported, script

ROUNDING = 1e-5
"""How far losses may be apart, relative: sums of float32 in another order, over several steps."""
WARM_UP = 2
Span = tuple[float, float]
Measured = dict[str, tuple[list[Span], list[float | None], list[float]]]
"""Of each script, when its steps began and ended, their losses, and seconds of processor time."""


def changed_lines() -> int:
    """Lines of the script that are others in its port, or that one has and the other has not."""
    text = Path(str(script.__file__)).read_text("utf-8")
    before, after = text.splitlines(), ported.ported(text).splitlines()
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for tag, a, b, c, d in blocks if tag != "equal")


def measure(name: str, steps: int, folder: str) -> Measured:
    """On one rank; the files of the plans are in ``folder``."""
    os.chdir(folder)
    torch.set_num_threads(1)
    runs = {"torch": script.train(name), "ours": ported.train(name)}
    found: Measured = {which: ([], [], []) for which in runs}
    for step in range(steps):
        for which in list(runs) if step % 2 else reversed(runs):
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            loss = next(runs[which])
            found[which][0].append((begin, time.perf_counter()))
            found[which][1].append(loss)
            found[which][2].append(time.process_time() - used)
    return found


def row_of(name: str, ranks: Sequence[Measured]) -> dict[str, Any]:
    """Medians of steps in milliseconds: from the first rank's start to the last one's end, and
    processor time of all ranks."""
    times = {which: _median([rank[which][0] for rank in ranks]) for which in ranks[0]}
    used = {which: _used([rank[which][2] for rank in ranks]) for which in ranks[0]}
    ours, theirs = (_losses([rank[which][1] for rank in ranks]) for which in ("ours", "torch"))
    apart = max(abs(x - y) / y for x, y in zip(ours, theirs, strict=True))
    return {
        "schedule": name,
        **{f"{which}_ms": ms for which, ms in times.items()},
        "ratio": times["ours"] / times["torch"],
        **{f"{which}_cpu_ms": ms for which, ms in used.items()},
        "cpu_ratio": used["ours"] / used["torch"],
        "losses": ours,
        "losses_apart": apart,
        "losses_equal": apart <= ROUNDING,
    }


def _losses(ranks: Sequence[Sequence[float | None]]) -> list[float]:
    return [loss for rank in ranks for loss in rank if loss is not None]


def _median(ranks: Sequence[Sequence[Span]]) -> float:
    """The processes share one machine's clock."""
    steps = list(zip(*ranks, strict=True))
    took = [max(end for _, end in step) - min(begin for begin, _ in step) for step in steps]
    return 1e3 * float(statistics.median(took[WARM_UP:] or took))


def _used(ranks: Sequence[Sequence[float]]) -> float:
    steps = [sum(step) for step in zip(*ranks, strict=True)]
    return 1e3 * float(statistics.median(steps[WARM_UP:] or steps))
