"""Training in one process by plain autograd: what every schedule must reproduce."""

from __future__ import annotations

import torch
from torch import nn

from pipeloom.runtime.pipeline.model_source import ModelSource, checked_stages
from pipeloom.runtime.stages.store import made


def train_alone(model: ModelSource, steps: int, microbatches: int) -> list[float]:
    """The loss of each step, the mean over its microbatches."""
    whole = nn.Sequential(*(made(stage, 0) for stage in checked_stages(model, 1)))
    optimizer = model.optimizer(whole.parameters())
    history = []
    for step in range(steps):
        pairs = zip(*model.batch(step, microbatches), strict=True)
        loss = torch.stack([model.loss(whole(x), y) for x, y in pairs]).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        history.append(loss.item())
    return history
