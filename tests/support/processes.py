"""Separate processes: commands that receive signals, what remains of them, torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

MARK = "PIPELOOM_TEST_MARK"
ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
"""The environment for processes that import this checkout's pipeloom and tests."""


def until(condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def sockets() -> list[list[str]]:
    """The rows of /proc/net for sockets in this process's network."""
    tables = [Path("/proc/self/net", kind).read_text().splitlines() for kind in ("tcp", "tcp6")]
    return [line.split() for _, *rows in tables for line in rows]


def torchrun(processes: int, *words: object) -> subprocess.CompletedProcess[str]:
    """Run ``python -m`` with these words in this number of ``torchrun`` processes."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    command = [sys.executable, "-m", *launcher, *map(str, words)]
    done = subprocess.run(
        command, env=ENVIRONMENT, timeout=280, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


class Started:
    """A command whose processes have a mark, with its own folder for temporary files."""

    def __init__(self, words: Sequence[object], folder: Path, **environment: str) -> None:
        self.mark, self.folder = f"{MARK}={uuid4().hex}", folder
        folder.mkdir()
        own = {MARK: self.mark.partition("=")[2], "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pipeloom", *map(str, words)],
            cwd=ROOT,
            env=ENVIRONMENT | own | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def running(self) -> dict[int, str]:
        """The command's processes that have not ended, with their names."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = (path / "comm").read_text().strip()
            except OSError:  # it has just ended, or is another user's
                continue
        return found

    def until(self, condition: Callable[[dict[int, str]], bool]) -> None:
        """Wait until the condition holds for its processes, or until it ends."""
        until(lambda: self.process.poll() is not None or condition(self.running()), 120.0)

    def ended(self, *signals: signal.Signals) -> tuple[int, str, list[str]]:
        """Send these signals; returns its exit code, its last line on standard error, and what it
        left: processes, and temporary files except torch's cache."""
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.2)
        _, err = self.process.communicate(timeout=120)
        end = time.monotonic() + 20.0
        while (left := self.running()) and time.monotonic() < end:
            time.sleep(0.05)
        assert "Traceback" not in err
        files = [path.name for path in self.folder.iterdir()]
        files = [name for name in files if not name.startswith("torchinductor_")]
        return self.process.returncode, (err.splitlines() or [""])[-1], [*left.values(), *files]
