"""Gloo: CPU tensors over TCP.

A send completes only once its receive is posted, whatever its size. Gloo matches messages with
receives by tags, in any order. So each channel numbers its messages and uses the number as the tag.
``is_completed`` of a message is False until ``wait``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from .base import Handle, Routes
from .process_group import GroupTransport
from .store import in_short, timed_out

TAGS = 1 << 30
NEVER = TAGS + 1  # a tag that no message has
SHORT = 1 << 16  # bytes; shorter messages are posted in the computing thread


class GlooHandle:
    """A posted message; keeps its tensor alive."""

    __slots__ = ("_tensor", "_timeout", "_work")

    def __init__(self, work: dist.Work, tensor: Tensor, timeout: timedelta) -> None:
        self._work, self._tensor, self._timeout = work, tensor, timeout

    def wait(self) -> None:
        """Waits until the message is sent or received.

        Raises TimeoutError after the transport's timeout, and ConnectionError if the peer is lost.
        """
        try:
            self._work.wait(self._timeout)
        except RuntimeError as error:
            raise _readable(error) from error


class PostedLater:
    """A send that another thread posts, as posting may take as long as copying the message."""

    __slots__ = ("_posted", "_timeout")

    def __init__(self, posted: Future[Handle], timeout: timedelta) -> None:
        self._posted, self._timeout = posted, timeout

    def wait(self) -> None:
        """Waits until the message is sent.

        Raises the errors of posting the send and of :meth:`GlooHandle.wait`, and TimeoutError if
        the send was not posted within the transport's timeout.
        """
        seconds = self._timeout.total_seconds()
        if wait([self._posted], seconds).not_done:
            raise timed_out("send operation to begin", seconds)
        self._posted.result().wait()


class GlooTransport(GroupTransport):
    """Sends messages by Gloo over one process group.

    A message's tag is its number in its channel.
    """

    backend = "gloo"

    def __init__(self, routes: Routes, device: torch.device, group: dist.ProcessGroup) -> None:
        super().__init__(routes, device, group)
        self._sent: dict[int, int] = defaultdict(int)
        self._received: dict[int, int] = defaultdict(int)
        # posting a long send copies it into the kernel's buffers, so another thread does it
        self._thread = ThreadPoolExecutor(1)

    def send(self, tensor: Tensor, peer: int) -> Handle:
        if tensor.nbytes <= SHORT:
            return self._posted(self.group.send, tensor, peer, _next(self._sent, peer))
        return self._sent_by_thread(tensor, peer)

    def _sent_by_thread(
        self, tensor: Tensor, peer: int, ready: Callable[[], object] | None = None
    ) -> Handle:
        """Posts a send in another thread, after calling ``ready``; returns its handle.

        ``wait`` of the handle raises the errors of that thread.
        """
        post = partial(self._posted, self.group.send, tensor, peer, _next(self._sent, peer))

        def run() -> Handle:
            if ready is not None:
                ready()
            return post()

        return PostedLater(self._thread.submit(run), self.timeout)

    def recv(self, buffer: Tensor, peer: int) -> Handle:
        return self._posted(self.group.recv, buffer, peer, _next(self._received, peer))

    def _posted(
        self, post: Callable[..., dist.Work], tensor: Tensor, peer: int, tag: int
    ) -> Handle:
        """Returns the handle of the message that ``post`` posts with this tag.

        Raises ConnectionError if the peer is lost.
        """
        try:
            return GlooHandle(post([tensor], peer, tag), tensor, self.timeout)
        except RuntimeError as error:
            raise _readable(error) from error

    def disconnect(self) -> None:
        """Closes all connections of this transport's process groups, which ends their waits.

        Gloo closes a connection when a wait times out: here, a wait for a message that no peer
        sends.
        """
        token = torch.empty(1)
        for group in self._made.values():
            for peer in set(range(group.size())) - {group.rank()}:
                with suppress(RuntimeError):
                    group.recv([token], peer, NEVER).wait(timedelta(milliseconds=1))

    def close(self) -> None:
        self._thread.shutdown()
        super().close()


def _readable(error: RuntimeError) -> OSError:
    """Returns Gloo's error as a TimeoutError or ConnectionError, without the source location."""
    text = in_short(str(error))
    return TimeoutError(text) if text.startswith("Timed out") else ConnectionError(text)


def _next(counts: dict[int, int], peer: int) -> int:
    """Returns the tag of the next message to or from ``peer``, and increments its count.

    ``counts``: for each peer, the number of messages so far.
    """
    tag = counts[peer]
    counts[peer] = tag % TAGS + 1
    return tag
