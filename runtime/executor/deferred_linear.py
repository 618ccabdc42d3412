"""Products with a parameter whose weight gradient can be put off: what they have in common, and
the one that nearly all are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from torch import Tensor
from torch.nn import functional

from ..dtensors import is_dtensor, local


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One product of ``x`` with ``weight``, plus ``bias`` where there is one.

    ``forward`` and ``input_grad`` are given the bias and weight to compute with: under autocast
    these are copies in its dtype. ``accumulate`` adds to the parameters' own ``.grad``.
    """

    weight: Tensor
    bias: Tensor | None = None
    autocast: ClassVar[bool] = True
    """Whether autocast runs this product in its lower precision."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product."""
        raise NotImplementedError

    def input_grad(self, dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient of ``x``, in its shape, for ``dy`` in the product's."""
        raise NotImplementedError

    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        """Adds the gradients of weight and bias."""
        raise NotImplementedError


class Linear(Rule):
    """``x @ weight.T + bias``: x (..., in), weight (out, in)."""

    __slots__ = ()

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)

    def input_grad(self, dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return dy @ weight

    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        dy = rows(dy)
        add_product(self.weight, dy.T, rows(x))
        if self.bias is not None:
            add(self.bias, dy.sum(0))


Reading = tuple[Rule, Tensor] | None


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Reading:  # noqa: A002
    """Reads the arguments of ``functional.linear``."""
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return None
    return Linear(weight, bias), input


def add_product(parameter: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds the matrix product ``a @ b`` to ``parameter.grad``, within the product where it can."""
    grad = parameter.grad
    if takes(grad, a, b):
        grad.addmm_(a, b)
    else:
        add(parameter, a @ b)


def add(parameter: Tensor, gradient: Tensor) -> None:
    """Adds to ``parameter.grad``, in the dtype that the parameter's gradients have."""
    grad = parameter.grad
    if grad is None:
        parameter.grad = gradient.to(parameter.grad_dtype)
    elif type(grad) is not Tensor and is_dtensor(grad) and is_dtensor(gradient):
        local(grad).add_(local(gradient.redistribute(placements=grad.placements)))
    else:
        grad.add_(gradient)


def takes(grad: Tensor | None, a: Tensor, b: Tensor) -> TypeGuard[Tensor]:
    """Whether a product can be added to the gradient within itself: no DTensor's, of which the
    product may have another layout."""
    if grad is None or not grad.dtype == a.dtype == b.dtype:
        return False
    return type(grad) is Tensor or not is_dtensor(grad)


def rows(x: Tensor) -> Tensor:
    """``x`` as a matrix of its last dimension's rows."""
    return x.reshape(-1, x.shape[-1])
