"""Training under faults: each is named on all ranks in time, nothing is left, nothing is lost."""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..recording import record, recorded
from .apart import left_behind, set_apart, unmount
from .faults import STARTS, Fault, differing
from .started import RANKS, SCHEMES, Started, Trial

HERE = Path(__file__).parent
SETTLES = 5.0  # seconds in which processes and sockets of a start that has ended are gone


def main(arguments: list[str]) -> int:
    """Disturbs, prints and records; 1 where a promise was broken."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory() as folder:
        disk = Path(folder, "disk")
        disk.mkdir()
        if (why := set_apart(disk)) is not None:
            print(f"chaos: skipped: {why}")
            return 0
        try:
            result = _disturbed(options, Path(folder))
        finally:
            unmount(disk)
    counts, broken = result["faults"], result["broken"]
    print(f"{sum(counts.values())} faults, {len(broken)} promises broken")
    if options.record:
        runs = [*recorded(HERE, "chaos").get("runs", []), result]
        faults = sum((Counter(run["faults"]) for run in runs), Counter[str]())
        whole = {"total": faults.total(), "broken": sum(len(run["broken"]) for run in runs)}
        path = record(HERE, "chaos", {**whole, "faults": dict(faults), "runs": runs})
        print(f"recorded in {path}: {whole['total']} faults in {len(runs)} runs")
    return 1 if broken else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--faults", type=int, default=200, help="it ends after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="adds to results/chaos.json")
    return parser.parse_args(arguments)


def _disturbed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Faults until there are enough or time is up: how many of each kind, and what was broken."""
    began, counts = time.monotonic(), Counter[str]()
    faults: list[str] = []
    broken: list[str] = []
    for fault, kind, found in _faults(random.Random(options.seed), folder):
        counts[kind] += 1
        faults.append(fault)
        broken += [f"fault {fault}: {line}" for line in found]
        print(f"{fault}: {'; '.join(found) or 'as promised'}", flush=True)
        if counts.total() >= options.faults or time.monotonic() > began + 60 * options.minutes:
            break
    load, seconds = round(os.getloadavg()[2], 1), round(time.monotonic() - began, 1)
    return {
        "seed": options.seed,
        "seconds": seconds,
        "load_average": load,
        "faults": dict(counts),
        "order": faults,
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
