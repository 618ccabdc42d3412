"""Training in one process takes one thread: several spin where another process is busy."""

from __future__ import annotations

import pytest
import torch

from examples.gpt import small
from examples.reference import train_alone


def test_one_thread_while_it_trains_and_as_many_as_before_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    told: list[tuple[int, float, list[int]]] = []
    losses = train_alone(small(), 2, 2, lambda done, loss: told.append((done, loss, [*asked])))
    assert told == [(1, losses[0], [1]), (2, losses[1], [1])]
    assert asked == [1, 2]
