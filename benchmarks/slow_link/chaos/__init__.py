"""Training under faults: each is named on all ranks in time, nothing is left, nothing is lost.

Four Gloo ranks train in a network and with disks of their own, and each start is disturbed once or
twice. It goes on from the last checkpoint, and each loss must equal that of a run that nobody
disturbed. Rank 0 serves the store of torch.distributed, which is the hard case.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipeloom import InputError

from .apart import left_behind, set_apart, unmount
from .faults import STARTS, Fault, differing
from .started import RANKS, SCHEMES, Started, Trial

SETTLES = 5.0  # seconds in which processes and sockets of a start that has ended are gone


def disturbed(seed: int, count: int) -> dict[str, Any]:
    """Disturbs training ``count`` times: faults of each kind, and the promises that were broken.

    Raises InputError where this process cannot have a network and disks of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        disk = Path(folder, "disk")
        disk.mkdir()
        if (why := set_apart(disk)) is not None:
            raise InputError(why)
        try:
            return _disturbed(seed, count, Path(folder))
        finally:
            unmount(disk)


def _disturbed(seed: int, count: int, folder: Path) -> dict[str, Any]:
    began, counts = time.monotonic(), Counter[str]()
    order, broken = list[str](), list[str]()
    for fault, kind, found in islice(_faults(random.Random(seed), folder), count):
        counts[kind] += 1
        order.append(fault)
        broken += [f"fault {fault}: {line}" for line in found]
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "load_average": round(os.getloadavg()[2], 1),
        "faults": dict(counts),
        "order": order,
        "broken": broken,
    }


def _faults(chance: random.Random, folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Each fault with its number, its kind, and the promises that were broken."""
    os.environ["TMPDIR"] = str(folder / "t")  # of the processes that are started from now on
    (folder / "t").mkdir()
    trials = [Trial(name, make(), folder / name) for name, make in SCHEMES.items()]
    usual, number, start = left_behind(), 0, chance.randrange(len(STARTS))
    while True:
        for trial in trials:
            for kind, told, found in _start(chance, trial, start, usual):
                yield f"{number}, {trial.name}, {kind} {told}", kind, found
                number += 1
        start = (start + 1) % len(STARTS)


def _start(
    chance: random.Random, trial: Trial, start: int, usual: set[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the kind, rank and seconds of each fault of one start, and the broken promises."""
    *first, last = STARTS[start]
    settings, poisoned = dict(trial.next()), None
    if "poisoned" in first:
        poisoned = trial.resumes_at() + 4
        settings = {k: v for k, v in settings.items() if k not in ("save", "every")}
    with Started(trial, settings, poisoned) as run:
        if "early" not in last and not run.begun(2):
            yield last, "", [f"did not start: {run.lines()}"]
            return
        for kind in first:
            yield kind, *_disturb(chance, trial, run, STARTS[start][kind])
        told, found = _disturb(chance, trial, run, STARTS[start][last])
    yield last, told, found + _litter(usual)


def _disturb(
    chance: random.Random, trial: Trial, run: Started, fault: Fault
) -> tuple[str, list[str]]:
    rank = chance.randrange(RANKS)
    time.sleep(chance.uniform(0.0, 0.5))
    began = time.monotonic()
    found = fault(run, rank)
    took = time.monotonic() - began
    found += differing(run.losses(), trial.losses, run.poisoned)
    return f"(rank {rank}, {took:.1f} s)", found


def _litter(usual: set[str]) -> list[str]:
    end = time.monotonic() + SETTLES
    while (left := left_behind() - usual) and time.monotonic() < end:
        time.sleep(0.1)
    return [f"left behind: {what}" for what in sorted(left)]
