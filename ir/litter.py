"""Leftovers of a process that is killed: folders with its number in their names, which the next
start removes, and processes, which the kernel ends with it."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from zlib import crc32

_PR_SET_PDEATHSIG = 1  # of sys/prctl.h


def own(prefix: str) -> str:
    """The beginning of the names of this process's folders."""
    return f"{prefix}{_machine()}-{os.getpid()}-"


def remove_litter(prefix: str, parent: Path | None = None) -> None:
    """Removes folders whose process has ended, as after SIGKILL: this user's and this machine's
    alone; by default those among the temporary files."""
    prefix = f"{prefix}{_machine()}-"
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{prefix}*-*"):
        number = folder.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError):
            mine = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if mine and number.isdigit() and not _runs(int(number)):
                shutil.rmtree(folder, ignore_errors=True)


@cache
def _machine() -> str:
    """Four digits for where a process's number is known: others may share the folder."""
    container = ""
    with suppress(OSError):
        container = str(Path("/proc/self/ns/pid").readlink())
    return f"{crc32(f'{platform.node()} {container}'.encode()) % 16**4:04x}"


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def tied_to_parent() -> Callable[[], object] | None:
    """Asks the kernel to end the process that calls it, be it stopped, once the thread that started
    that does; on Linux alone."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded here: between fork and exec nothing may be
    return partial(prctl, _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
