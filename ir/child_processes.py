"""Child processes that the kernel kills when their parent ends."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from functools import partial

_PR_SET_PDEATHSIG = 1  # from sys/prctl.h


def tied_to_parent() -> Callable[[], object] | None:
    """Return a function that lets the kernel kill the calling process when its parent thread ends.

    The function must be called in the child process. The kernel kills the child even if it is
    stopped (SIGSTOP). Returns None on systems other than Linux.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded here, as loading is not safe between fork and exec
    return partial(prctl, _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
