"""Measurements of every training run on the ring: ends of its steps, bytes over each link."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .network import ABOVE, BELOW

ROUTER = "PIPELOOM_ROUTER"  # environment variable: the namespace of the rank's router


@dataclass(frozen=True, slots=True)
class RankRun:
    """One rank's run: ``ends``, the end of each step on the machine's clock in seconds; ``losses``,
    of each step, those of this rank's microbatches; ``sent``, bytes a step that left its router by
    each link, forwarded ones and headers included."""

    ends: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    sent: dict[str, float]


def measure(
    step: Callable[[int], Sequence[float]], steps: int, barrier: Callable[[], None]
) -> RankRun:
    """Calls ``step`` for each step, one right after the other; it returns the losses.

    No rank waits for another between steps. ``barrier`` is called before the first and after the
    last, where bytes are counted.
    """
    barrier()
    before = sent()
    ends, losses = [], []
    for i in range(steps):
        losses.append(tuple(step(i)))
        ends.append(time.perf_counter())
    barrier()
    after = sent()
    return RankRun(
        tuple(ends), tuple(losses), {name: (after[name] - before[name]) / steps for name in after}
    )


def sent() -> dict[str, int]:
    """Bytes that have left this rank's router by each of its links since the ring was made."""
    line = ["ip", "-n", os.environ[ROUTER], "-s", "-j", "link"]
    listed = subprocess.run(line, capture_output=True, check=True)
    counts = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in json.loads(listed.stdout)}
    return {name: counts[name] for name in (ABOVE, BELOW)}


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of all ranks: milliseconds between the ends of successive steps after the warm-up, and
    the mean loss of every step. ``wires[link]``: bytes a step over it, upwards and downwards."""

    step_ms: float
    least_ms: float
    most_ms: float
    losses: tuple[float, ...]
    wires: tuple[tuple[float, float], ...]


def measured(runs: Sequence[RankRun], warmup: int) -> Measured:
    """The figures of one scheme from its ranks' runs.

    ``step_ms`` is the median of all intervals, each the mean over the ranks.
    """
    intervals = list(_intervals(runs, warmup))
    losses = [
        statistics.mean(loss for rank in step for loss in rank)
        for step in zip(*(run.losses for run in runs), strict=True)
    ]
    wires = zip(runs, (*runs[1:], runs[0]), strict=True)
    return Measured(
        statistics.median(intervals),
        min(intervals),
        max(intervals),
        tuple(losses),
        tuple((low.sent[ABOVE], high.sent[BELOW]) for low, high in wires),
    )


def _intervals(runs: Sequence[RankRun], warmup: int) -> Iterator[float]:
    """Milliseconds from each step's end to the next one's, from that of the last warm-up step
    on."""
    ends = list(zip(*(run.ends for run in runs), strict=True))[warmup - 1 :]
    for first, second in pairwise(ends):
        yield statistics.mean(b - a for a, b in zip(first, second, strict=True)) * 1e3
