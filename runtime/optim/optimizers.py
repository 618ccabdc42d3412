"""Creates the optimizers of a rank's stages."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from pipeloom.ir.errors import InputError

from ..rank.options import MakeOptimizer


def make_optimizers(
    modules: Mapping[int, nn.Module], make: MakeOptimizer
) -> dict[int, torch.optim.Optimizer]:
    """Returns a new optimizer for each stage that has parameters with gradients, by stage.

    A parameter that several of the ``modules`` share belongs to the optimizer of the first one.
    ``make``: a function that creates an optimizer for a list of parameters. Raises InputError if it
    returns the same optimizer for two stages.
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
