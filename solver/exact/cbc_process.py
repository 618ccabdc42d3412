"""A process for CBC that ends with this one, in a folder that the next start removes."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from weakref import WeakSet

PREFIX = "pipeloom-cbc-"
_PR_SET_PDEATHSIG = 1  # of sys/prctl.h
_running: WeakSet[subprocess.Popen[bytes]] = WeakSet()


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder with this process's number in its name; those of processes that have ended are
    removed first."""
    remove_litter(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(
        prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def remove_litter(parent: Path) -> None:
    """Removes folders whose process has ended, as after SIGKILL: this user's alone."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        number = folder.name.removeprefix(PREFIX).partition("-")[0]
        with suppress(OSError):
            own = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if own and number.isdigit() and not _runs(int(number)):
                shutil.rmtree(folder, ignore_errors=True)


def end_all() -> None:
    """Ends what this process has started here, and removes its folders: where it ends without
    waiting for the threads that would."""
    for process in list(_running):
        process.kill()
        process.wait()
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}{os.getpid()}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def started(command: Sequence[str], folder: Path, log: int) -> subprocess.Popen[bytes]:
    """The command, in a session of its own: Ctrl-C reaches it through this process alone."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_tied_to_parent(),  # noqa: PLW1509 - a call into libc alone
    )
    _running.add(process)
    return process


def _tied_to_parent() -> Callable[[], object] | None:
    """Asks the kernel to end a child once the thread that starts it does; on Linux alone."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded here: between fork and exec nothing may be
    return partial(prctl, _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
