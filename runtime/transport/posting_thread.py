"""Messages posted by a thread of their own, as posting may take as long as a copy of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from threading import Thread

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
        try:
            handle = self._posted.result(seconds)
        except TimeoutError:
            if self._posted.done():
                raise
            raise timed_out("send operation to begin", seconds) from None
        handle.wait()


class PostingThread:
    """Runs in turn what posts messages; begins with the first of them."""

    def __init__(self) -> None:
        self._posts: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def send(
        self, post: Callable[[], Handle], ready: Callable[[], object] | None, timeout: timedelta
    ) -> Handle:
        """A send that ``post`` posts in this thread, once ``ready`` has returned; what they raise,
        the handle's wait raises."""
        posted = Future[Handle]()

        def run() -> None:
            try:
                if ready is not None:
                    ready()
                posted.set_result(post())
            except Exception as error:
                posted.set_exception(error)

        if self._thread is None:
            self._thread = Thread(target=_run_all, args=(self._posts,), daemon=True)
            self._thread.start()
        self._posts.put(run)
        return PostedLater(posted, timeout)

    def close(self) -> None:
        """Returns once everything is posted."""
        if self._thread is not None:
            self._posts.put(None)
            self._thread.join()


def _run_all(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
