"""Calls library functions with the options of a command, and handles progress and interrupts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pipeloom.ir.errors import InputError

from .arguments import renamed
from .failures import say
from .progress import interruptible, watched

if TYPE_CHECKING:
    from pipeloom.planner.inputs.problem_setup import ProfileSource
    from pipeloom.planner.requests.search import SearchRequest
    from pipeloom.planner.solving.progress import Listener

CACHE = "PIPELOOM_CACHE"
PATIENCE = 1.0
"""Seconds of compiling kernels after which a note is printed."""
LOOKING = 0.1
"""Seconds between two checks whether kernels are still being compiled."""
Found = TypeVar("Found")


def searched(
    command: SearchRequest, plan: Callable[..., Found], request: type[SearchRequest], quiet: bool
) -> Found:
    """Call ``plan`` with the values that ``command`` has for the fields of ``request``.

    Returns the result of ``plan``. On Ctrl-C or SIGTERM, ``plan`` is asked to stop, and returns the
    best result so far. ``quiet``: print no progress.
    """
    asked = command.arguments(request) | {"cache": command.cache or os.environ.get(CACHE)}
    try:
        with watched(quiet) as display:
            asked["profile"] = read_profile(command.profile, display)
            with interruptible() as interrupt:
                return plan(**asked | {"progress": display, "should_stop": interrupt})
    except InputError as error:
        raise renamed(error, {} if command.cache else {"cache": CACHE}) from None


def read_profile(profile: Any, tell: Listener) -> ProfileSource:
    """Read and validate the argument ``profile``. Raises InputError if it is invalid.

    ``tell``: a function that is called with notes. Also compiles kernels if necessary, which may
    take a minute the first time; this is announced even with ``--quiet``.
    """
    from pipeloom.planner.inputs.problem_setup import ProfileSource

    source = ProfileSource(profile, tell)
    source.check()
    announce_compiling()
    return source


def announce_compiling() -> None:
    """Compile the kernels if necessary. If that takes long, print a message to standard error."""
    from pipeloom.ir.cost.simulator import warm_up

    done = threading.Event()
    watching = threading.Thread(target=_watch, args=(done,), daemon=True)
    watching.start()
    try:
        warm_up()
    finally:
        done.set()
        watching.join()


def _watch(done: threading.Event) -> None:
    from pipeloom.ir.kernels import seconds_compiling

    while not done.wait(LOOKING):
        if seconds_compiling() > PATIENCE:
            say("compiling kernels, once on this machine; a time limit does not count this")
            return
