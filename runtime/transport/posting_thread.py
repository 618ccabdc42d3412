"""Messages posted by a thread of their own, as posting may take as long as a copy of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta

from .base import Handle, timed_out


class PostedLater:
    """A send that a thread posts."""

    __slots__ = ("_posted", "_timeout")

    def __init__(self, posted: Future[Handle], timeout: timedelta) -> None:
        self._posted, self._timeout = posted, timeout

    def wait(self) -> None:
        """Raises what posting raised or the message's own wait does, and TimeoutError where the
        send has not been posted in time."""
        seconds = self._timeout.total_seconds()
        if wait([self._posted], seconds).not_done:
            raise timed_out("send operation to begin", seconds)
        self._posted.result().wait()


class PostingThread:
    """Runs in turn what posts messages; begins with the first of them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    def send(
        self, post: Callable[[], Handle], ready: Callable[[], object] | None, timeout: timedelta
    ) -> Handle:
        """A send that ``post`` posts in this thread, once ``ready`` has returned; what they raise,
        the handle's wait raises."""

        def run() -> Handle:
            if ready is not None:
                ready()
            return post()

        return PostedLater(self._thread.submit(run), timeout)

    def close(self) -> None:
        """Returns once everything is posted."""
        self._thread.shutdown()
