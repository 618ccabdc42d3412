"""From a command's options to calls of the library, with progress and interrupts."""

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
"""Seconds of compilation after which it is announced."""
LOOKING = 0.1
"""Polling interval, in seconds."""
Found = TypeVar("Found")


def searched(
    command: SearchRequest, plan: Callable[..., Found], request: type[SearchRequest], quiet: bool
) -> Found:
    """The result of ``plan`` for the fields of ``request``; on Ctrl-C, the best result so far."""
    asked = command.arguments(request) | {"cache": command.cache or os.environ.get(CACHE)}
    try:
        with watched(quiet) as display:
            asked["profile"] = read_profile(command.profile, display)
            with interruptible() as interrupt:
                return plan(**asked | {"progress": display, "should_stop": interrupt})
    except InputError as error:
        raise renamed(error, {} if command.cache else {"cache": CACHE}) from None


def read_profile(profile: Any, tell: Listener) -> ProfileSource:
    """The validated profile.

    Compilation of kernels, which may take a minute once, is announced even with ``--quiet``.
    """
    from pipeloom.planner.inputs.problem_setup import ProfileSource

    source = ProfileSource(profile, tell)
    source.check()
    announce_compiling()
    return source


def announce_compiling() -> None:
    """Compile the kernels if necessary; if that takes long, say so on standard error."""
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
