"""The optimizers of a rank's stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from pipeloom.ir.errors import InputError

from ..rank.options import MakeOptimizer


def make_optimizers(
    modules: Mapping[int, nn.Module], make: MakeOptimizer
) -> dict[int, torch.optim.Optimizer]:
    """Creates the optimizers of the stages with trained parameters, by stage.

    A parameter of several stages belongs to the first one's optimizer. Raises InputError if
    ``make`` returns the same optimizer for two stages.
    """
    optimizers, seen = {}, set[int]()
    for stage, module in modules.items():
        own = [p for p in module.parameters() if p.requires_grad and id(p) not in seen]
        seen.update(map(id, own))
        if own:
            optimizers[stage] = make(own)
            if any(optimizers[stage] is optimizers[other] for other in list(optimizers)[:-1]):
                raise InputError(
                    f"optimizer: expected one for each stage, got one for stage {stage} and "
                    "another, which would step twice"
                )
    return optimizers


def taken_over(optimizers: Iterable[torch.optim.Optimizer]) -> MakeOptimizer:
    """Returns a function that finds the one of ``optimizers`` that has a stage's parameters.

    It raises InputError if there is none.
    """
    by_parameter = {
        id(parameter): optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }

    def taken(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        for parameter in parameters:
            if id(parameter) in by_parameter:
                return by_parameter[id(parameter)]
        raise InputError(
            "optimizer: expected one of the pipeline's to have what a stage trains by now, got a "
            "stage that was frozen when the pipeline was made: make it with a parameter trained"
        )

    return taken
