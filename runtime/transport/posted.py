"""A message that is sent or received in every step, over any transport.

A transport may have an attribute ``first``: another transport, which carries each message the first
time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from .base import Handle, Transport


class RepeatedMessage:
    """A message that is posted and waited for in every step.

    ``first`` posts it the first time, ``then`` all later times.
    """

    __slots__ = ("_handle", "_start", "_then")

    def __init__(self, first: Callable[[], Handle], then: Callable[[], Handle]) -> None:
        self._start, self._then = first, then
        self._handle: Handle | None = None

    def post(self) -> None:
        """Posts the message; called in every step in the order of the instructions."""
        self._handle = self._start()
        self._start = self._then

    def wait(self) -> None:
        """Waits until the posted message is sent or received."""
        assert self._handle is not None
        self._handle.wait()
        self._handle = None


def sending(transport: Transport, take: Callable[[], Tensor], peer: int) -> RepeatedMessage:
    """Returns a message that sends the tensor ``take()`` to ``peer`` at each post, detached.

    The tensor must be contiguous and must not change until the wait.
    """
    return RepeatedMessage(*(partial(_send, one, take, peer) for one in _in_turn(transport)))


def receiving(transport: Transport, buffer: Tensor, peer: int) -> RepeatedMessage:
    """Returns a message that is received from ``peer`` into ``buffer`` after each post."""
    return RepeatedMessage(*(partial(one.recv, buffer, peer) for one in _in_turn(transport)))


def _in_turn(transport: Transport) -> tuple[Transport, Transport]:
    return getattr(transport, "first", transport), transport


def _send(transport: Transport, take: Callable[[], Tensor], peer: int) -> Handle:
    return transport.send(take().detach(), peer)
