"""The faults of each start, what is done to the ranks, and what is promised then."""

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

SETTLES = 5.0  # seconds in which processes and sockets of a start that has ended are gone
ROOM = 8.0  # seconds beyond the patience in which all ranks have ended, on a machine under load
POISONED = 4  # the step of a start that is
Fault = Callable[[Started, int], list[str]]


def faults(chance: random.Random, folder: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yields the scheme of each fault, its kind, rank and seconds, and the broken promises."""
    trials = [Trial(name, folder) for name in SCHEMES]
    usual, first = left_behind(), chance.randrange(len(STARTS))
    for start in islice(cycle(STARTS), first, None):
        for trial in trials:
            for fault in _start(chance, trial, start, usual):
                yield trial.name, *fault


def _start(
    chance: random.Random, trial: Trial, faults: Mapping[str, Fault], usual: set[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the kind, rank and seconds of each fault of one start, and the broken promises."""
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
    """The rank and seconds of a fault, and the promises that were broken; losses from a poisoned
    step on are not compared."""
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
    """Stopped for a second, twice, within the patience: nothing is to end."""
    before = len(run.losses())
    for _ in range(2):
        run.signal(rank, signal.SIGSTOP)
        time.sleep(1.0)
        run.signal(rank, signal.SIGCONT)
        time.sleep(0.3)
    return _goes_on(run, before)


def _mended(run: Started, rank: int) -> list[str]:
    """All links cut for half a second, within the patience: nothing is to end."""
    before = len(run.losses())
    _cut_for(0.5)
    return _goes_on(run, before)


def _cut(run: Started, rank: int) -> list[str]:
    """All links cut for longer than the patience: nobody can ask anybody."""
    _cut_for(PATIENCE + 1.0)
    return _ended(run, None)


def _cut_for(seconds: float) -> None:
    loopback(up=False)
    time.sleep(seconds)
    loopback(up=True)


def _full(run: Started, rank: int) -> list[str]:
    """No byte more goes onto the disk: the next checkpoint fails, on all ranks."""
    filler = fill(run.saved)
    found = _ended(run, None, words="No space left on device")
    filler.unlink()
    return found


def _poisoned(run: Started, rank: int) -> list[str]:
    """A step of NaN is told as such and skipped; the next ones have numbers."""
    if not run.begun(8):
        return [f"ended: {run.lines()}"]
    losses = list(run.losses().values())[:8]
    nan = [math.isnan(loss) for loss in losses]
    return [] if nan == [i == POISONED for i in range(8)] else [f"losses: {losses}"]


# faults of one start, one after the other: the first lets it go on, or comes while it is made
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
    """All ranks but those ``left`` end in time, each with one line, of these ``words``, that names
    the culprit."""
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
    """Steps come as before."""
    if run.begun(before + 3):
        return []
    return [f"does not go on: {[lines[-1:] for lines in run.lines()]}"]
