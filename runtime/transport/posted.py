"""Messages that are sent again in every step, over any transport that posts one at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from torch import Tensor

from .base import Handle


class Posts(Protocol):
    """The part of a transport that posts."""

    def send(self, tensor: Tensor, peer: int) -> Handle: ...

    def recv(self, buffer: Tensor, peer: int) -> Handle: ...


class PostedMessage:
    """One message's place between its post and its wait."""

    __slots__ = ("_handle", "_start")

    def __init__(self, start: Callable[[], Handle]) -> None:
        self._start = start
        self._handle: Handle | None = None

    def post(self) -> None:
        self._handle = self._start()

    def wait(self) -> None:
        assert self._handle is not None
        self._handle.wait()
        self._handle = None


class PostedMessages:
    """Each is posted anew, as if it were the only one."""

    def __init__(self, transport: Posts) -> None:
        self._transport = transport

    def begin(self) -> None:
        pass

    def sending(self, take: Callable[[], Tensor], peer: int) -> PostedMessage:
        return PostedMessage(partial(_send, self._transport, take, peer))

    def receiving(self, buffer: Tensor, peer: int) -> PostedMessage:
        return PostedMessage(partial(self._transport.recv, buffer, peer))


def _send(transport: Posts, take: Callable[[], Tensor], peer: int) -> Handle:
    return transport.send(take().detach(), peer)
