"""A message of every step: a transport's ``first`` carries it the first time, on both sides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeloom.runtime.transport.posted import receiving, sending


class Noted:
    """Notes what is posted; a handle that is done."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def send(self, tensor: torch.Tensor, peer: int) -> Noted:
        self._log.append(f"{self._name} sends to {peer}")
        return self

    def recv(self, buffer: torch.Tensor, peer: int) -> Noted:
        self._log.append(f"{self._name} receives from {peer}")
        return self

    def wait(self) -> None:
        pass


@pytest.mark.parametrize("has_first", [False, True])
def test_the_first_post_is_the_first_transports(has_first: bool) -> None:
    log: list[str] = []
    transport: Any = Noted("it", log)
    if has_first:
        transport.first = Noted("first", log)
    place = torch.zeros(2)
    messages = [sending(transport, lambda: place, 1), receiving(transport, place, 2)]
    for _ in range(3):
        for message in messages:
            message.post()
            message.wait()
    who = ["first" if has_first else "it", "it", "it"]
    assert log == [line for one in who for line in (f"{one} sends to 1", f"{one} receives from 2")]
