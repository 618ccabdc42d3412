"""Injects faults into training runs, and checks how the ranks react to each."""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

from .apart import fill, left_behind, loopback
from .disturbed import PATIENCE
from .trial import SCHEMES, Started, Trial

SETTLES = 5.0  # seconds until all processes and sockets of a finished run must be gone
ROOM = 8.0  # seconds after the patience until all ranks must have ended, on a busy machine
POISONED = 4  # the step, counted from the start, in which the losses are NaN
Fault = Callable[[Started, int], list[str]]


def faults(chance: random.Random, folder: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield the scheme, kind, rank and seconds of each fault, and the broken promises."""
    trials = [Trial(name, folder) for name in SCHEMES]
    usual, first = left_behind(), chance.randrange(len(STARTS))
    for start in islice(cycle(STARTS), first, None):
        for trial in trials:
            for fault in _start(chance, trial, start, usual):
                yield trial.name, *fault


def _start(
    chance: random.Random, trial: Trial, faults: Mapping[str, Fault], usual: set[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Start training once and inject ``faults``; yield kind, rank and seconds, and broken promises.

    The last fault is expected to end the run; the ranks must survive the others.
    """
    *first, last = faults
    settings, poisoned = dict(trial.next()), None
    if "poisoned" in first:
        poisoned = trial.resumes_at() + POISONED
        settings = {k: v for k, v in settings.items() if k not in ("save", "every")}
    with Started(trial, settings, poisoned) as run:
        if "early" not in last and not run.begun(2):
            yield last, "", [f"did not start: {run.lines()}"]
            return
        for kind in first:
            yield kind, *_disturb(chance, trial, run, faults[kind])
        told, found = _disturb(chance, trial, run, faults[last])
    end = time.monotonic() + SETTLES
    while (left := left_behind() - usual) and time.monotonic() < end:
        time.sleep(0.1)
    yield last, told, found + [f"left behind: {what}" for what in sorted(left)]


def _disturb(
    chance: random.Random, trial: Trial, run: Started, fault: Fault
) -> tuple[str, list[str]]:
    """Inject a fault; returns its rank and seconds, and the broken promises.

    Losses must equal those of an undisturbed run, except from a poisoned step on.
    """
    rank = chance.randrange(len(run.ranks))
    time.sleep(chance.uniform(0.0, 0.5))
    began = time.monotonic()
    found = fault(run, rank)
    took = time.monotonic() - began
    other = [
        f"step {step}: loss {loss!r}, undisturbed {trial.losses[step]!r}"
        for step, loss in run.losses().items()
        if step in trial.losses and step < (math.inf if run.poisoned is None else run.poisoned)
        if loss != trial.losses[step]
    ]
    return f"(rank {rank}, {took:.1f} s)", found + other[:1]


def _killed(run: Started, rank: int) -> list[str]:
    run.signal(rank, signal.SIGKILL)
    return _ended(run, rank)


def _stopped(run: Started, rank: int) -> list[str]:
    run.signal(rank, signal.SIGSTOP)
    return _ended(run, rank, left=[rank])


def _slowed(run: Started, rank: int) -> list[str]:
    """Stop a rank for a second, twice. This is within the patience, so nothing may end."""
    before = len(run.losses())
    for _ in range(2):
        run.signal(rank, signal.SIGSTOP)
        time.sleep(1.0)
        run.signal(rank, signal.SIGCONT)
        time.sleep(0.3)
    return _goes_on(run, before)


def _mended(run: Started, rank: int) -> list[str]:
    """Cut all links for half a second. This is within the patience, so nothing may end."""
    before = len(run.losses())
    _cut_for(0.5)
    return _goes_on(run, before)


def _cut(run: Started, rank: int) -> list[str]:
    """Cut all links for longer than the patience, so that no rank can reach another."""
    _cut_for(PATIENCE + 1.0)
    return _ended(run, None)


def _cut_for(seconds: float) -> None:
    loopback(up=False)
    time.sleep(seconds)
    loopback(up=True)


def _full(run: Started, rank: int) -> list[str]:
    """Fill the disk, so that the next checkpoint fails on all ranks."""
    filler = fill(run.saved)
    found = _ended(run, None, words="No space left on device")
    filler.unlink()
    return found


def _poisoned(run: Started, rank: int) -> list[str]:
    """A step with NaN losses must be reported and skipped, and the next ones must be finite."""
    if not run.begun(8):
        return [f"ended: {run.lines()}"]
    losses = list(run.losses().values())[:8]
    nan = [math.isnan(loss) for loss in losses]
    return [] if nan == [i == POISONED for i in range(8)] else [f"losses: {losses}"]


# faults of each start, in this order; "early" ones are injected during the start
STARTS: Sequence[Mapping[str, Fault]] = (
    {"slowed": _slowed, "killed": _killed},
    {"mended": _mended, "stopped": _stopped},
    {"poisoned": _poisoned, "cut": _cut},
    {"slowed": _slowed, "disk full": _full},
    {"killed early": _killed},
    {"mended": _mended, "killed": _killed},
    {"poisoned": _poisoned, "stopped": _stopped},
    {"stopped early": _stopped},
)


def _ended(
    run: Started, culprit: int | None, left: Sequence[int] = (), words: str = ""
) -> list[str]:
    """Check that all ranks except ``left`` end in time, each with one line of output.

    The line must name the rank ``culprit`` and contain ``words``.
    """
    found = [f"rank {rank} still runs" for rank in run.wait(PATIENCE + ROOM, left)]
    for rank, lines in enumerate(run.lines()):
        said = [line for line in lines if not line.startswith("step ")]
        if rank == culprit and not said:
            continue
        if len(said) != 1 or not said[0].startswith("pipeloom: "):
            found.append(f"rank {rank} said {said}")
        elif culprit not in (None, rank) and f"rank {culprit}" not in said[0]:
            found.append(f"rank {rank} does not name rank {culprit}: {said[0]}")
        elif words not in said[0]:
            found.append(f"rank {rank} does not say {words!r}: {said[0]}")
    return found


def _goes_on(run: Started, before: int) -> list[str]:
    """Check that three more steps are run."""
    if run.begun(before + 3):
        return []
    return [f"does not go on: {[lines[-1:] for lines in run.lines()]}"]
