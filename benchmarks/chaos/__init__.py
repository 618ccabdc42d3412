"""Training under faults: each is named on all ranks in time, nothing is left, nothing is lost."""

from __future__ import annotations

import argparse
import ctypes
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.planner.build import build

from ..recording import record
from .worker import PATIENCE, Attempt, train

HERE = Path(__file__).parent
RANKS, MICROBATCHES, EVERY = 4, 8, 5
STEPS = 100_000  # more than there is time for
REFERENCE = 90  # steps of the undisturbed run; beyond two thirds of them a run begins anew
STARTED = 60.0  # seconds in which the first step is to come
ROOM = 8.0  # seconds beyond the patience in which all ranks have ended: the roll call, and the load
NEW_NETWORK = 0x40000000  # of sched.h: CLONE_NEWNET


def main(arguments: list[str]) -> int:
    """Disturbs, prints and records; 1 where a promise was broken."""
    options = _options(arguments)
    if (why := _apart()) is not None:
        print(f"chaos: skipped: {why}")
        return 0
    chaos, counts = Chaos(random.Random(options.seed)), Counter[str]()
    faults: list[str] = []
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        trials = [Trial(name, make(), Path(folder, name)) for name, make in SCHEMES.items()]
        began = time.monotonic()
        number = 0
        while number < options.faults and time.monotonic() < began + 60 * options.minutes:
            trial, kind = trials[number % len(trials)], list(KINDS)[number // 4 % len(KINDS)]
            rank = chaos.random.randrange(RANKS)
            found = chaos.disturb(trial, kind, rank)
            fault = f"{number}, {trial.name}, {kind} (rank {rank})"
            faults.append(fault)
            broken += [f"fault {fault}: {line}" for line in found]
            counts[kind] += 1
            print(f"{fault}: {'; '.join(found) or 'as promised'}", flush=True)
            number += 1
    result = {"seed": options.seed, "faults": dict(counts), "minutes": options.minutes}
    result |= {"seconds": time.monotonic() - began, "order": faults, "broken": broken}
    print(f"{number} faults, {len(broken)} promises broken")
    if options.record:
        print(f"recorded in {record(HERE, 'chaos', result)}")
    return 1 if broken else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--faults", type=int, default=200, help="it ends after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="writes results/chaos.json")
    return parser.parse_args(arguments)


def _apart() -> str | None:
    """Puts this process into a network of its own, which ends with it; else why that cannot be."""
    if shutil.which("ip") is None:
        return "ip: not found"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK):
        return f"a network namespace: {os.strerror(ctypes.get_errno())}"
    _loopback(up=True)
    return None


def _loopback(*, up: bool) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up" if up else "down"], check=True)


def _program(family: str, *, post_validation: bool = False) -> Program:
    stage = StageProfile(t_f=2.0, t_b=2.0, t_w=2.0, m_b=1.0, m_w=0.5, weight_bytes=1088)
    profile = Profile(stages=(stage,) * RANKS, ranks=RANKS)
    made = build(family, profile, MICROBATCHES)
    return compile_schedule(made, post_validation=post_validation)


SCHEMES: dict[str, Callable[[], Program]] = {
    "activations": lambda: _program("zb-h1"),
    "weights": lambda: _program("weipipe-interleave"),
    "post-validation": lambda: _program("zb-h1", post_validation=True),
    "graphs": lambda: _program("1f1b"),
}


class Trial:
    """A scheme with its checkpoints, and the losses that it had undisturbed."""

    def __init__(self, name: str, program: Program, folder: Path) -> None:
        self.name, self.program, self.folder = name, program, folder
        self.saved = folder / "saved"
        self.settings: dict[str, Any] = {"stages_as": "aten"} if name == "graphs" else {}
        self.saved.mkdir(parents=True)
        with Started(self, {"steps": REFERENCE}) as run:
            run.wait(300.0)
            self.losses = run.losses()
        assert len(self.losses) == REFERENCE, run.lines()

    def next(self) -> Mapping[str, Any]:
        """The settings of the next start: from the last checkpoint, or anew near the end."""
        steps = sorted(int(path.name.partition("-")[2]) for path in self.saved.glob("step-*"))
        if steps and steps[-1] > REFERENCE * 2 // 3:
            shutil.rmtree(self.saved)
            self.saved.mkdir()
            steps = []
        resume = {"resume": str(self.saved)} if steps else {}
        return {"steps": STEPS, "save": str(self.saved), "every": EVERY, **resume}

    def resumes_at(self) -> int:
        steps = [int(path.name.partition("-")[2]) for path in self.saved.glob("step-*")]
        return max(steps, default=0)


class Started:
    """The processes of one start, ended with the context."""

    def __init__(
        self, trial: Trial, settings: Mapping[str, Any], poisoned: int | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=trial.folder))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch._dynamo", "benchmarks.chaos.worker"])
        both = {**trial.settings, **settings}
        attempt = Attempt(trial.program, self.folder, port, both, poisoned)
        self.ranks: list[BaseProcess] = [
            context.Process(target=train, args=(attempt, rank), daemon=True)
            for rank in range(RANKS)
        ]
        for process in self.ranks:
            process.start()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.ranks:
            if process.is_alive():
                process.kill()
            process.join()

    def wait(self, seconds: float) -> list[int]:
        """The ranks that still run after so long."""
        end = time.monotonic() + seconds
        for process in self.ranks:
            process.join(max(0.0, end - time.monotonic()))
        return [rank for rank, process in enumerate(self.ranks) if process.is_alive()]

    def lines(self) -> list[list[str]]:
        """The lines that each rank wrote."""
        paths = [self.folder / f"rank{rank}" for rank in range(RANKS)]
        return [path.read_text().splitlines() if path.exists() else [] for path in paths]

    def losses(self) -> dict[int, float]:
        rows = [line.split() for line in self.lines()[0]]
        return {int(row[1]): float(row[2]) for row in rows if row[0] == "step" and len(row) == 3}

    def begun(self, steps: int) -> bool:
        """Whether so many steps have been told within a minute."""
        end = time.monotonic() + STARTED
        while len(self.losses()) < steps and time.monotonic() < end:
            if not all(process.is_alive() for process in self.ranks):
                return False
            time.sleep(0.01)
        return len(self.losses()) >= steps


@dataclass
class Chaos:
    """Faults at random moments."""

    random: random.Random

    def disturb(self, trial: Trial, kind: str, rank: int) -> list[str]:
        """The promises that were broken, a line each; ``rank``: where the fault is, if of one."""
        poisoned = trial.resumes_at() + 4 if kind == "poisoned" else None
        settings = trial.next()
        if poisoned is not None:
            poisoned = (trial.resumes_at() if "resume" in settings else 0) + 4
            settings = {k: v for k, v in settings.items() if k not in ("save", "every")}
        with Started(trial, settings, poisoned) as run:
            if kind != "killed early" and not run.begun(2):
                return [f"did not start: {run.lines()}"]
            time.sleep(self.random.uniform(0.0, 0.5))
            found = KINDS[kind](run, rank)
            losses = run.losses()
        found += _differing(losses, trial.losses, poisoned)
        litter = [path.name for path in Path(tempfile.gettempdir()).glob("pipeloom-*")]
        return found + [f"litter: {name}" for name in litter]


def _differing(
    losses: Mapping[int, float], undisturbed: Mapping[int, float], poisoned: int | None
) -> list[str]:
    known = {step: loss for step, loss in losses.items() if step in undisturbed}
    if poisoned is not None:
        known = {step: loss for step, loss in known.items() if step < poisoned}
    return [
        f"step {step}: loss {loss!r}, undisturbed {undisturbed[step]!r}"
        for step, loss in known.items()
        if loss != undisturbed[step]
    ][:1]


def _killed(run: Started, rank: int) -> list[str]:
    _signal(run, rank, signal.SIGKILL)
    return _ended(run, rank)


def _stopped(run: Started, rank: int) -> list[str]:
    _signal(run, rank, signal.SIGSTOP)
    return _ended(run, rank, left=[rank])


def _slowed(run: Started, rank: int) -> list[str]:
    """Stopped for a second, over and over, within the patience: nothing is to end."""
    before = len(run.losses())
    for _ in range(2):
        _signal(run, rank, signal.SIGSTOP)
        time.sleep(1.0)
        _signal(run, rank, signal.SIGCONT)
        time.sleep(0.3)
    return _goes_on(run, before)


def _mended(run: Started, rank: int) -> list[str]:
    """All links cut for half a second, within the patience: nothing is to end."""
    before = len(run.losses())
    _loopback(up=False)
    time.sleep(0.5)
    _loopback(up=True)
    return _goes_on(run, before)


def _cut(run: Started, rank: int) -> list[str]:
    """All links cut for longer than the patience: nobody can ask anybody."""
    _loopback(up=False)
    time.sleep(PATIENCE + 1.0)
    _loopback(up=True)
    return _ended(run, None)


def _full(run: Started, rank: int) -> list[str]:
    """No byte more can be written by the rank than a few: its next checkpoint fails."""
    with suppress(ProcessLookupError):
        pid = run.ranks[rank].pid
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if rank else 4096, 4096))
    return _ended(run, rank)


def _poisoned(run: Started, rank: int) -> list[str]:
    """A step of NaN is told as such and skipped; the next ones have numbers."""
    if not run.begun(8):
        return [f"ended: {run.lines()}"]
    losses = list(run.losses().values())[:8]
    nan = [math.isnan(loss) for loss in losses]
    return [] if nan == [i == 4 for i in range(8)] else [f"losses: {losses}"]


KINDS: dict[str, Callable[[Started, int], list[str]]] = {
    "killed": _killed,
    "stopped": _stopped,
    "slowed": _slowed,
    "killed early": _killed,
    "cut": _cut,
    "mended": _mended,
    "disk full": _full,
    "poisoned": _poisoned,
}


def _signal(run: Started, rank: int, number: signal.Signals) -> None:
    pid = run.ranks[rank].pid
    assert pid is not None
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _ended(run: Started, culprit: int | None, left: Sequence[int] = ()) -> list[str]:
    """All ranks but those ``left`` end in time, each with one line that names the culprit."""
    running = run.wait(PATIENCE + ROOM)
    found = [f"rank {rank} still runs" for rank in running if rank not in left]
    for rank, lines in enumerate(run.lines()):
        said = [line for line in lines if not line.startswith("step ")]
        if rank == culprit and not said:
            continue
        if len(said) != 1 or not said[0].startswith("pipeloom: "):
            found.append(f"rank {rank} said {said}")
        elif culprit is not None and not _names(said[0], culprit, own=rank == culprit):
            found.append(f"rank {rank} does not name rank {culprit}: {said[0]}")
    return found


def _names(line: str, culprit: int, *, own: bool) -> bool:
    lost = culprit == 0 and "store of torch.distributed" in line
    return own or lost or f"rank {culprit}" in line


def _goes_on(run: Started, before: int) -> list[str]:
    """Steps come as before."""
    if run.begun(before + 3):
        return []
    return [f"does not go on: {[lines[-1:] for lines in run.lines()]}"]
