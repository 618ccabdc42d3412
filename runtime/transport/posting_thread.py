"""Posts messages in a thread, as posting may take as long as copying the message."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta

from .base import Handle
from .store import timed_out


class PostedLater:
    """A send that a thread posts."""

    __slots__ = ("_posted", "_timeout")

    def __init__(self, posted: Future[Handle], timeout: timedelta) -> None:
        self._posted, self._timeout = posted, timeout

    def wait(self) -> None:
        """Waits until the message is sent.

        Raises the error of posting or of the message's own wait, and TimeoutError if the send has
        not been posted in time.
        """
        seconds = self._timeout.total_seconds()
        if wait([self._posted], seconds).not_done:
            raise timed_out("send operation to begin", seconds)
        self._posted.result().wait()


class PostingThread:
    """Posts messages one after the other in a thread, which starts with the first message."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    def send(
        self, post: Callable[[], Handle], ready: Callable[[], object] | None, timeout: timedelta
    ) -> Handle:
        """Posts a send by ``post`` in the thread, once ``ready`` has returned.

        Errors of both are raised by the handle's ``wait``.
        """

        def run() -> Handle:
            if ready is not None:
                ready()
            return post()

        return PostedLater(self._thread.submit(run), timeout)

    def close(self) -> None:
        """Waits until everything is posted."""
        self._thread.shutdown()
