"""Training in one process with plain autograd, which defines the result that every schedule must
reproduce."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pipeloom.runtime.pipeline.model_source import ModelSource, checked_stages
from pipeloom.runtime.stages.store import made


def train_alone(
    model: ModelSource,
    steps: int,
    microbatches: int,
    after_step: Callable[[int, float], object] = lambda *_: None,
) -> list[float]:
    """Train the whole model in this process. Returns the loss of each step, averaged over its
    microbatches.

    ``after_step``: called after each step with the number of finished steps and the loss of that
    step.
    """
    whole = nn.Sequential(*(made(stage, 0) for stage in checked_stages(model, 1)))
    optimizer = model.optimizer(whole.parameters())
    history: list[float] = []
    with _one_thread():
        for step in range(steps):
            pairs = zip(*model.batch(step, microbatches), strict=True)
            loss = torch.stack([model.loss(whole(x), y) for x, y in pairs]).mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            history.append(loss.item())
            after_step(len(history), history[-1])
    return history


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use a single torch thread within the context.

    Waiting torch threads spin: if another process keeps a core busy, training with two threads can
    take ten times as long as with one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
