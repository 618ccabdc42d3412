"""Removes the temporary folders and child processes that killed processes leave behind.

The name of a temporary folder contains the ID of the process that created it. If that process has
ended, the next process that starts removes the folder. Child processes are killed by the kernel
when their parent ends.
"""

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

_PR_SET_PDEATHSIG = 1  # from sys/prctl.h


def own(prefix: str) -> str:
    """The beginning of the names of this process's folders: ``prefix``, machine and process ID."""
    return f"{prefix}{_machine()}-{os.getpid()}-"


def remove_litter(prefix: str, parent: Path | None = None) -> None:
    """Remove the folders of ended processes, such as those killed by SIGKILL.

    The folders belong to this user, and :func:`own` made their names from ``prefix`` on this
    machine. ``parent``: the folder that contains them, by default the system's folder for temporary
    files.
    """
    prefix = f"{prefix}{_machine()}-"
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{prefix}*-*"):
        number = folder.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError):
            mine = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if mine and number.isdigit() and not _runs(int(number)):
                shutil.rmtree(folder, ignore_errors=True)


@cache
def _machine() -> str:
    """Four hexadecimal digits that identify the machine and PID namespace.

    A process ID is unique only within them, and other machines may use the same parent folder.
    """
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
    """Return a function that lets the kernel kill the calling process when its parent thread ends.

    The function must be called in the child process. The kernel kills the child even if it is
    stopped (SIGSTOP). Returns None on systems other than Linux.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded here, as loading is not safe between fork and exec
    return partial(prctl, _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
