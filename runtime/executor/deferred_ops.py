"""The products whose weight gradients can be deferred to W: one class and one table entry each.

``RULES`` maps a torch function to a function that takes its arguments and returns the
:class:`Rule` and x, or None for arguments that are not handled. For None, autograd computes the
weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..dtensors import is_dtensor
from .deferred_linear import Reading, Rule, add, add_product, linear, rows, takes


class MatMul(Rule):
    """``x @ weight + bias``: x (..., in), weight (in, out).

    Without a bias, the product may be batched: x (experts, rows, in), weight (experts, in, out).
    """

    __slots__ = ()

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x @ weight if bias is None else torch.addmm(bias, x, weight)

    def input_grad(self, dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return dy @ weight.mT

    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        if self.weight.dim() == 2:
            dy = rows(dy)
            add_product(self.weight, rows(x).T, dy)
        elif takes(grad := self.weight.grad, x, dy):
            grad.baddbmm_(x.mT, dy)
        else:
            add(self.weight, x.mT @ dy)
        if self.bias is not None:
            add(self.bias, dy.sum(0))


@dataclass(frozen=True, slots=True, eq=False)
class GroupedMatMul(Rule):
    """A grouped product: each group of rows of x (rows, in) is multiplied by its own matrix.

    Group g ends before row ``offs[g]``, and its matrix is ``weight[g]``, with weight (groups, in,
    out).
    """

    offs: Tensor = field(kw_only=True)
    autocast = False

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch._grouped_mm(x, weight, offs=self.offs)

    def input_grad(self, dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return torch._grouped_mm(dy, weight.mT, offs=self.offs)

    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        if self.weight.stride(-2) == 1:  # the same form as in autograd, for bitwise equal results
            gradient = torch._grouped_mm(dy.mT, x, offs=self.offs).mT
        else:
            gradient = torch._grouped_mm(x.mT, dy, offs=self.offs)
        add(self.weight, gradient)


@dataclass(frozen=True, slots=True, eq=False)
class Convolution(Rule):
    """A convolution of x; ``settings`` are stride, padding, dilation and groups.

    ``function``: ``functional.conv1d``, ``conv2d`` or ``conv3d``.
    """

    function: Callable[..., Tensor] = field(kw_only=True)
    settings: tuple[list[int], list[int], list[int], int] = field(kw_only=True)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.function(x, weight, bias, *self.settings)

    def input_grad(self, dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return self._backward(dy, x, weight, (True, False, False))[0]

    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        # only the shape is used: the weight's memory may already have been given back
        weight = torch.empty_like(self.weight, dtype=dy.dtype)
        _, grad, bias_grad = self._backward(dy, x, weight, (False, True, self.bias is not None))
        add(self.weight, grad)
        if self.bias is not None:
            add(self.bias, bias_grad)

    def _backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        stride, padding, dilation, groups = self.settings
        none = [0] * len(stride)
        outputs: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            dy, x, weight, [weight.shape[0]], stride, padding, dilation, False, none, groups, mask
        )
        return outputs


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingLookup(Rule):
    """Selects the rows of ``weight`` whose indices are in x.

    Row ``padding`` gets no gradient; None: all rows get one.
    """

    padding: int | None = None
    autocast = False

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.embedding(x, weight, self.padding)

    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        grad = self.weight.grad
        if (
            grad is None
            or self.padding is not None
            or grad.dtype.itemsize < 4
            or is_dtensor(self.weight)
        ):
            padding = -1 if self.padding is None else self.padding
            number = self.weight.shape[0]
            add(self.weight, torch.ops.aten.embedding_dense_backward(dy, x, number, padding, False))
        else:  # writes only the rows that were looked up
            grad.index_add_(0, x.reshape(-1), rows(dy).to(grad.dtype))


def _matmul(*args: Tensor, **named: Any) -> Reading:
    if named or len(args) != 2:
        return None
    x, other = args
    batched = other.dim() == x.dim() == 3 and other.shape[0] == x.shape[0]
    return (MatMul(other), x) if batched or (other.dim() == 2 and x.dim() >= 2) else None


def _addmm(*args: Tensor, **named: Any) -> Reading:
    if named or len(args) != 3:
        return None
    bias, x, weight = args
    return (MatMul(weight, bias), x) if bias.shape == weight.shape[1:] else None


def _grouped(a: Tensor, b: Tensor, *, offs: Tensor | None = None, **named: Any) -> Reading:
    if offs is None or (a.dim(), b.dim()) != (2, 3) or any(v is not None for v in named.values()):
        return None
    return GroupedMatMul(b, offs=offs), a


def _embedding(  # noqa: PLR0917
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Reading:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    padding = None if padding_idx is None else padding_idx % weight.shape[0]
    return EmbeddingLookup(weight, padding=padding), input


def _convolution(function: Callable[..., Tensor], dimensions: int) -> Callable[..., Reading]:
    def read(  # noqa: PLR0917
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Reading:
        if isinstance(padding, str) or input.dim() != dimensions + 2:
            return None
        stride, padding, dilation = (_each(v, dimensions) for v in (stride, padding, dilation))
        settings = stride, padding, dilation, groups
        return Convolution(weight, bias, function=function, settings=settings), input

    return read


def _each(value: Any, dimensions: int) -> list[int]:
    return [value] * dimensions if isinstance(value, int) else list(value)


RULES: dict[Any, Callable[..., Reading]] = {
    functional.linear: linear,
    functional.embedding: _embedding,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.bmm: _matmul,
    torch.addmm: _addmm,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    Tensor.mm: _matmul,
    Tensor.bmm: _matmul,
    Tensor.addmm: _addmm,
    torch._grouped_mm: _grouped,
    functional.conv1d: _convolution(functional.conv1d, 1),
    functional.conv2d: _convolution(functional.conv2d, 2),
    functional.conv3d: _convolution(functional.conv3d, 3),
}


def defer(function: Callable[..., Any], read: Callable[..., Reading]) -> None:
    """Registers a product, such as a fused kernel, whose weight gradient is deferred to W.

    ``function`` computes the product and must dispatch through
    ``torch.overrides.handle_torch_function``. ``read`` receives the arguments of each call of
    ``function``, and returns the :class:`Rule` and x, or None if it does not handle them.
    """
    RULES[function] = read
