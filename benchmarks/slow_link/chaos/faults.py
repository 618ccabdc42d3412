"""Faults of a run, and the promises that each is to keep."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from .apart import fill, loopback
from .started import Started
from .worker import PATIENCE

ROOM = 8.0  # seconds beyond the patience in which all ranks have ended, on a machine under load
Fault = Callable[[Started, int], list[str]]


def _killed(run: Started, rank: int) -> list[str]:
    run.signal(rank, signal.SIGKILL)
    return ended(run, rank)


def _stopped(run: Started, rank: int) -> list[str]:
    run.signal(rank, signal.SIGSTOP)
    return ended(run, rank, left=[rank])


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
    loopback(up=False)
    time.sleep(0.5)
    loopback(up=True)
    return _goes_on(run, before)


def _cut(run: Started, rank: int) -> list[str]:
    """All links cut for longer than the patience: nobody can ask anybody."""
    loopback(up=False)
    time.sleep(PATIENCE + 1.0)
    loopback(up=True)
    return ended(run, None)


def _full(run: Started, rank: int) -> list[str]:
    """No byte more goes onto the disk: the next checkpoint fails, on all ranks."""
    filler = fill(run.saved)
    found = ended(run, None, words="No space left on device")
    filler.unlink()
    return found


def _poisoned(run: Started, rank: int) -> list[str]:
    """A step of NaN is told as such and skipped; the next ones have numbers."""
    if not run.begun(8):
        return [f"ended: {run.lines()}"]
    losses = list(run.losses().values())[:8]
    nan = [math.isnan(loss) for loss in losses]
    return [] if nan == [i == 4 for i in range(8)] else [f"losses: {losses}"]


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


def ended(
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


def differing(
    losses: Mapping[int, float], undisturbed: Mapping[int, float], poisoned: int | None
) -> list[str]:
    """The first step whose loss is not that of the undisturbed run; none is compared from a
    poisoned one on."""
    known = {step: loss for step, loss in losses.items() if step in undisturbed}
    if poisoned is not None:
        known = {step: loss for step, loss in known.items() if step < poisoned}
    return [
        f"step {step}: loss {loss!r}, undisturbed {undisturbed[step]!r}"
        for step, loss in known.items()
        if loss != undisturbed[step]
    ][:1]
