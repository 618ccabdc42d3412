"""Accumulation of a graph's gradients into their parameters', as autograd does it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import Tensor, fx, nn

from ..dtensors import is_dtensor, like, local
from ..executor.deferred_ops import add
from .functions import Take
from .liveness import root_of
from .torch_internals import value_of


def take_into(parameter: nn.Parameter, *, keeps: bool) -> Take:
    """Adds a gradient to the parameter's; ``keeps``: the first one may become it, as nothing else
    has its memory and it lies there as the parameter does."""

    if is_dtensor(parameter):
        return partial(_take_part, parameter, keeps)

    def take(gradient: Tensor) -> None:
        grad = parameter.grad
        if grad is not None:
            grad.add_(gradient)
        elif keeps:
            add(parameter, gradient)
        else:
            parameter.grad = _own(parameter, gradient)

    return take


def _take_part(parameter: Tensor, keeps: bool, gradient: Tensor) -> None:
    """Adds the part of a DTensor's gradient that is here."""
    own = gradient if keeps or parameter.grad is not None else gradient.clone()
    add(parameter, like(parameter, own))


def _own(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    like: Tensor = torch.empty_like(
        parameter, dtype=parameter.grad_dtype or gradient.dtype, requires_grad=False
    )
    return like.copy_(gradient)


def fresh(
    node: fx.Node, parameter: nn.Parameter, calls: Collection[fx.Node], others: Sequence[fx.Node]
) -> bool:
    """Whether a gradient is a tensor of its own, made by the ``calls`` of its piece and none of the
    ``others`` that outlive that, which lies in memory as the parameter does."""
    value = value_of(node)
    root = root_of(node)
    return (
        root in calls
        and value.stride() == local(parameter).stride()
        and all(root_of(other) is not root for other in others)
    )
