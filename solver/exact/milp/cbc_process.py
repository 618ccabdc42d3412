"""A process for CBC that ends with this one, in a folder that the next start removes."""

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
    """A new folder with this process's number in its name; those of processes that have ended are
    removed first."""
    remove_litter(PREFIX)
    with tempfile.TemporaryDirectory(prefix=own(PREFIX), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def end_all() -> None:
    """Ends what this process has started here, and removes its folders: where it ends without
    waiting for the threads that would."""
    for process in list(_running):
        process.kill()
        process.wait()
    for folder in Path(tempfile.gettempdir()).glob(f"{own(PREFIX)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def started(command: Sequence[str], folder: Path, log: int) -> subprocess.Popen[bytes]:
    """The command, in a session of its own: Ctrl-C reaches it through this process alone."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=tied_to_parent(),  # noqa: PLW1509 - a call into libc alone
    )
    _running.add(process)
    return process
