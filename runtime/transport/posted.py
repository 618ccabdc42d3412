"""A message that is sent in every step, over any transport.

A transport may have another one as ``first``, which carries each message the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from .base import Handle, Transport


class RepeatedMessage:
    """A message of every step, with a post and a wait."""

    __slots__ = ("_handle", "_start", "_then")

    def __init__(self, first: Callable[[], Handle], then: Callable[[], Handle]) -> None:
        self._start, self._then = first, then
        self._handle: Handle | None = None

    def post(self) -> None:
        """Posts the message; called in every step in the order of the instructions."""
        self._handle = self._start()
        self._start = self._then

    def wait(self) -> None:
        """Waits until the message is received, or sent."""
        assert self._handle is not None
        self._handle.wait()
        self._handle = None


def sending(transport: Transport, take: Callable[[], Tensor], peer: int) -> RepeatedMessage:
    """Sends ``take()`` at each post, detached: contiguous, and unchanged until the wait."""
    return RepeatedMessage(*(partial(_send, one, take, peer) for one in _in_turn(transport)))


def receiving(transport: Transport, buffer: Tensor, peer: int) -> RepeatedMessage:
    """Receives from ``peer`` into ``buffer`` at each post."""
    return RepeatedMessage(*(partial(one.recv, buffer, peer) for one in _in_turn(transport)))


def _in_turn(transport: Transport) -> tuple[Transport, Transport]:
    return getattr(transport, "first", transport), transport


def _send(transport: Transport, take: Callable[[], Tensor], peer: int) -> Handle:
    return transport.send(take().detach(), peer)
