"""Gradients that are summed over processes: as one message, and those that nothing was added to.

In one process a parameter that no microbatch used has no gradient, and optimizers leave it as it
is; AdamW decays one whose gradient is 0. So sums begin with -0.0, which adds nothing to what is
sent, not even to a sign: what is -0.0 throughout in the end is no gradient.
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


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient, made of :data:`NOTHING` where it has none."""
    if parameter.grad is None:
        dtype = parameter.grad_dtype or parameter.dtype
        parameter.grad = torch.full_like(parameter, nothing(dtype), dtype=dtype)
    return parameter.grad


def reals(tensor: Tensor) -> Tensor:
    """A view of the tensor as real numbers; of one that is a conjugate by a bit alone, a copy."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def flattened(gradients: Sequence[Tensor], dtype: torch.dtype | None) -> Tensor:
    """The gradients' real numbers as one message, in ``dtype``, by default one that holds all; a
    single gradient in its own memory where it can be."""
    parts = [reals(gradient).flatten() for gradient in gradients]
    flat = parts[0] if len(parts) == 1 else torch.cat(parts)
    return flat.to(dtype or flat.dtype)


def spread(flat: Tensor, gradients: Sequence[Tensor]) -> None:
    """Writes a message that :func:`flattened` made back into the gradients."""
    sizes = [gradient.numel() * (1 + gradient.is_complex()) for gradient in gradients]
    for gradient, part in zip(gradients, torch.split(flat, sizes), strict=True):
        if gradient.is_complex():
            pairs = part.to(gradient.dtype.to_real()).view(*gradient.shape, 2)
            gradient.copy_(torch.complex(*pairs.unbind(-1)))
        else:
            gradient.copy_(part.view_as(gradient))


@torch.no_grad()
def clear_unused(parameters: Sequence[nn.Parameter]) -> None:
    """Removes gradients that are :data:`NOTHING` throughout; the host waits for the device."""
    found = [p for p in parameters if p.grad is not None]
    if not found:
        return
    here = [reals(local(gradient_of(parameter))) for parameter in found]
    unused = torch.stack([((x == 0) & x.signbit()).all() for x in here]).tolist()
    for parameter in (p for p, none in zip(found, unused, strict=True) if none):
        parameter.grad = None
