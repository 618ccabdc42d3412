"""Starts CBC so that it ends with this process; the next start removes folders left behind."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from pipeloom.ir.litter import own, remove_litter, tied_to_parent

PREFIX = "pipeloom-cbc-"
_running: WeakSet[subprocess.Popen[bytes]] = WeakSet()


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder named after this process; removes the folders of processes that have ended."""
    remove_litter(PREFIX)
    with tempfile.TemporaryDirectory(prefix=own(PREFIX), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def end_all() -> None:
    """Kill the processes started here and remove their folders.

    For a process that exits without waiting for the threads that would do so.
    """
    for process in list(_running):
        process.kill()
        process.wait()
    for folder in Path(tempfile.gettempdir()).glob(f"{own(PREFIX)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def started(command: Sequence[str], folder: Path, log: int) -> subprocess.Popen[bytes]:
    """Start the command in a session of its own, so that Ctrl-C reaches only this process."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=tied_to_parent(),  # noqa: PLW1509 - only a call into libc
    )
    _running.add(process)
    return process
