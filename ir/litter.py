"""Removes what killed processes leave behind.

Folders with the number of an ended process in their names are removed at the next start; child
processes are ended by the kernel together with their parent.
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
    """The prefix of the names of this process's folders."""
    return f"{prefix}{_machine()}-{os.getpid()}-"


def remove_litter(prefix: str, parent: Path | None = None) -> None:
    """Remove folders of this user and this machine whose process has ended, as after SIGKILL.

    ``parent``: the folder that contains them, by default the folder of temporary files.
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

    A process number is valid only there, and other machines may use the same folder.
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
    """A function that makes the kernel kill the calling process when its parent thread ends.

    It is to be called in the child process, and also works if the child is stopped. None on systems
    other than Linux.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded here, as it must not be between fork and exec
    return partial(prctl, _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
