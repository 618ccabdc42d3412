"""A training scheme, and the four processes of each of its starts."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipeloom import Profile, StageProfile, build, compile_schedule

from .disturbed import Source, train

RANKS, MICROBATCHES, EVERY = 4, 8, 5
STEPS = 100_000  # more than can be run
REFERENCE = 90  # steps of the undisturbed run; after two thirds of them, training starts again at 0
STARTED = 180.0  # seconds until the first steps must be finished, on a busy machine
SCHEMES: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "activations": ("zb-h1", {}, {}),
    "weights": ("weipipe-interleave", {}, {}),
    "post-validation": ("zb-h1", {"post_validation": True}, {}),
    "graphs": ("1f1b", {}, {"stages_as": "aten"}),
}
"""The family of each scheme, and the options of its program and of its runs."""


class Trial:
    """A scheme with its checkpoints, and the losses of an undisturbed run."""

    def __init__(self, name: str, folder: Path) -> None:
        family, options, self.settings = SCHEMES[name]
        stage = StageProfile(t_f=2.0, t_b=2.0, t_w=2.0, m_b=1.0, m_w=0.5, weight_bytes=1088)
        planned = build(family, Profile((stage,) * RANKS, RANKS), MICROBATCHES)
        self.program = compile_schedule(planned, **options)
        self.name, self.folder, self.saved = name, folder / name, folder / "disk" / name
        for made in (self.folder, self.saved):
            made.mkdir()
        with Started(self, {"steps": REFERENCE}) as run:
            run.wait(600.0)
            self.losses = run.losses()
        assert len(self.losses) == REFERENCE, run.lines()

    def next(self) -> Mapping[str, Any]:
        """The settings of the next start: resume the last checkpoint, or start again at step 0."""
        if self.resumes_at() > REFERENCE * 2 // 3:
            shutil.rmtree(self.saved)
            self.saved.mkdir()
        resume = {"resume": str(self.saved)} if self.resumes_at() else {}
        return {"steps": STEPS, "save": str(self.saved), "every": EVERY, **resume}

    def resumes_at(self) -> int:
        """The step of the last complete checkpoint; 0 if there is none."""
        complete = [path.parent.name for path in self.saved.glob("step-*/.metadata")]
        return max((int(name.partition("-")[2]) for name in complete), default=0)


class Started:
    """The processes of one start, killed at the end of the context."""

    def __init__(
        self, trial: Trial, settings: Mapping[str, Any], poisoned: int | None = None
    ) -> None:
        self.saved, self.poisoned = trial.saved, poisoned
        self.folder = Path(tempfile.mkdtemp(dir=trial.folder))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch._dynamo", train.__module__])
        source = Source(poisoned=poisoned)
        given = (trial.program, source, self.folder, {**trial.settings, **settings})
        places = [{"port": port, "rank": rank} for rank in range(RANKS)]
        self.ranks: list[BaseProcess] = [
            context.Process(target=train, args=given, kwargs=place, daemon=True) for place in places
        ]
        for process in self.ranks:
            process.start()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.ranks:
            process.kill()
            process.join()

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.ranks[rank].pid
        assert pid is not None
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def wait(self, seconds: float, but: Sequence[int] = ()) -> list[int]:
        """Wait for all ranks except ``but``; returns those that still run after ``seconds``."""
        end = time.monotonic() + seconds
        waited = {r: process for r, process in enumerate(self.ranks) if r not in but}
        for process in waited.values():
            process.join(max(0.0, end - time.monotonic()))
        return [rank for rank, process in waited.items() if process.is_alive()]

    def lines(self) -> list[list[str]]:
        """The lines that each rank has written."""
        paths = [self.folder / f"rank{rank}" for rank in range(RANKS)]
        return [path.read_text().splitlines() if path.exists() else [] for path in paths]

    def losses(self) -> dict[int, float]:
        rows = [line.split() for line in self.lines()[0]]
        return {int(row[1]): float(row[2]) for row in rows if row[0] == "step" and len(row) == 3}

    def begun(self, steps: int) -> bool:
        """Wait until ``steps`` steps are reported; False if a rank ends or it takes too long."""
        end = time.monotonic() + STARTED
        while len(self.losses()) < steps and time.monotonic() < end:
            if not all(process.is_alive() for process in self.ranks):
                return False
            time.sleep(0.02)
        return len(self.losses()) >= steps
