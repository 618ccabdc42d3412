"""Gradients that nothing was added to, on any rank: in one process there is none, and optimizers
leave the parameter as it is.

AdamW decays one whose gradient is 0. So sums begin with -0.0, which adds nothing to what is sent,
not even to a sign: what is -0.0 throughout in the end is no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..dtensors import local

NOTHING = -0.0


def nothing(dtype: torch.dtype) -> complex:
    """The zero that sums of this dtype begin with."""
    return complex(NOTHING, NOTHING) if dtype.is_complex else NOTHING


def reals(tensor: Tensor) -> Tensor:
    """A view of the tensor as real numbers; of one that is a conjugate by a bit alone, a copy."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


@torch.no_grad()
def clear_unused(parameters: Sequence[nn.Parameter]) -> None:
    """Removes gradients that are :data:`NOTHING` throughout; the host waits for the device."""
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    if not parameters:
        return
    found = torch.stack([_is_unused(parameter.grad) for parameter in parameters]).tolist()
    for parameter, unused in zip(parameters, found, strict=True):
        if unused:
            parameter.grad = None


def _is_unused(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    here = reals(local(gradient))
    return ((here == 0) & here.signbit()).all()
