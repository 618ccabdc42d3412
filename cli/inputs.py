"""From a command's options to calls of the library, with progress and interrupts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pipeloom.ir.errors import InputError

from .arguments import renamed
from .kernel_warmup import announce_compiling
from .progress import interruptible, watched

if TYPE_CHECKING:
    from pipeloom.planner.inputs.problem_setup import ProfileSource
    from pipeloom.planner.requests.search import SearchRequest
    from pipeloom.planner.solving.progress import Listener

CACHE = "PIPELOOM_CACHE"
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
