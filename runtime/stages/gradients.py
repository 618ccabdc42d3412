"""Gradients that are summed over processes: packing into one message, and unused gradients.

In one process, a parameter that no microbatch used has no gradient, so optimizers skip it; with a
gradient of 0, AdamW would decay it. To distinguish the two cases, sums start with -0.0. Adding -0.0
changes no value, not even the sign of a zero. A sum that is -0.0 everywhere means no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..dtensors import local

NOTHING = -0.0  # the initial value of sums


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Returns the parameter's gradient; if it has none, first sets it to -0.0 everywhere."""
    if parameter.grad is None:
        dtype = parameter.grad_dtype or parameter.dtype
        parameter.grad = torch.full_like(parameter, NOTHING, dtype=dtype)
    return parameter.grad


def flattened(gradients: Sequence[Tensor], dtype: torch.dtype | None) -> Tensor:
    """Returns the gradients as one flat tensor, for a message.

    ``dtype``: the dtype of the result; None: one that can represent all gradients. A single
    gradient is not copied if possible.
    """
    parts = [gradient.flatten() for gradient in gradients]
    flat = parts[0] if len(parts) == 1 else torch.cat(parts)
    return flat.to(dtype or flat.dtype)


def spread(flat: Tensor, gradients: Sequence[Tensor]) -> None:
    """Copies ``flat``, which :func:`flattened` has returned for ``gradients``, back into them."""
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


@torch.no_grad()
def clear_unused(parameters: Sequence[nn.Parameter]) -> None:
    """Sets gradients that are -0.0 everywhere to None; the host waits for the device."""
    found = [p for p in parameters if p.grad is not None]
    if not found:
        return
    here = [local(gradient_of(parameter)) for parameter in found]
    unused = torch.stack([((x == 0) & x.signbit()).all() for x in here]).tolist()
    for parameter in (p for p, none in zip(found, unused, strict=True) if none):
        parameter.grad = None
