"""Accumulation of a graph's gradients into their parameters', as autograd does it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, fx, nn

from ..dtensors import is_dtensor, like, local
from ..executor.deferred_linear import add
from .liveness import root_of
from .torch_internals.aten import value_of


class AddGradient:
    """Adds a gradient to a parameter's; ``keeps``: the first one may become it, as nothing else has
    its memory and it lies there as the parameter does."""

    def __init__(self, parameter: nn.Parameter, *, keeps: bool) -> None:
        self._parameter, self._keeps = parameter, keeps
        self._whole = not is_dtensor(parameter)

    def __call__(self, gradient: Tensor) -> None:
        parameter = self._parameter
        grad = parameter.grad
        if not self._whole:
            own = gradient if self._keeps or grad is not None else gradient.clone()
            add(parameter, like(parameter, own))
        elif grad is not None:
            grad.add_(gradient)
        elif self._keeps:
            add(parameter, gradient)
        else:
            parameter.grad = _own(parameter, gradient)

    def product(self, a: Tensor, b: Tensor) -> None:
        """Adds the product of two matrices, within it where the gradient has its type: no pass over
        the gradient more, rounded otherwise than a sum after it."""
        grad = self._parameter.grad
        if self._whole and grad is not None and grad.dtype == a.dtype:
            grad.addmm_(a, b)
        else:
            self(torch.mm(a, b))


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
