"""Products with a parameter whose weight gradient can be deferred to W: base class and Linear."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from torch import Tensor
from torch.nn import functional

from ..dtensors import is_dtensor, local


@dataclass(frozen=True, slots=True, eq=False)
class Rule(ABC):
    """A product of ``x`` with the parameter ``weight``, plus ``bias`` if there is one.

    ``forward`` and ``input_grad`` receive the weight and bias to compute with, which are copies in
    autocast's dtype if autocast is enabled. ``accumulate`` adds to ``.grad`` of the parameters.
    """

    weight: Tensor
    bias: Tensor | None = None
    autocast: ClassVar[bool] = True
    """Whether autocast runs this product in lower precision."""

    @abstractmethod
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the product of ``x`` with ``weight``, plus ``bias``."""

    def input_grad(self, dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Returns the gradient of ``x``, shaped like ``x``, given the product's gradient ``dy``.

        Not called for an ``x`` that needs no gradient, such as integers.
        """
        raise NotImplementedError

    @abstractmethod
    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        """Computes the gradients of weight and bias, and adds them to the parameters' ``.grad``.

        ``dy`` is the gradient of the product with ``x``.
        """


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


Reading = tuple[Rule, Tensor] | None  # a product and its x; None: the product is not deferred


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Reading:  # noqa: A002
    """Returns the rule for a call of ``functional.linear`` with these arguments, and the call's x.

    Returns None if the weight is not a matrix or the bias has another shape than (out,).
    """
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return None
    return Linear(weight, bias), input


def add_product(parameter: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds the matrix product ``a @ b`` to ``parameter.grad``, in one operation if possible."""
    grad = parameter.grad
    if takes(grad, a, b):
        grad.addmm_(a, b)
    else:
        add(parameter, a @ b)


def add(parameter: Tensor, gradient: Tensor) -> None:
    """Adds ``gradient`` to ``parameter.grad``.

    If the parameter has no gradient yet, the new one is in the parameter's ``grad_dtype``.
    """
    grad = parameter.grad
    if grad is None:
        parameter.grad = gradient.to(parameter.grad_dtype)
    elif type(grad) is not Tensor and is_dtensor(grad) and is_dtensor(gradient):
        local(grad).add_(local(gradient.redistribute(placements=grad.placements)))
    else:
        grad.add_(gradient)


def takes(grad: Tensor | None, a: Tensor, b: Tensor) -> TypeGuard[Tensor]:
    """Whether a fused operation (``addmm_``) can add the product of ``a`` and ``b`` to ``grad``.

    True if all three have the same dtype and ``grad`` is not a DTensor, whose layout may differ
    from that of the product. False if ``grad`` is None.
    """
    if grad is None or not grad.dtype == a.dtype == b.dtype:
        return False
    return type(grad) is Tensor or not is_dtensor(grad)


def rows(x: Tensor) -> Tensor:
    """Returns ``x`` reshaped to a matrix: all dimensions but the last are flattened."""
    return x.reshape(-1, x.shape[-1])
