"""Products with views of parameters, such as ``weight.T``, a slice, or one expert of a stack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..dtensors import is_dtensor
from .deferred_linear import Rule


@dataclass(frozen=True, slots=True, eq=False)
class OfView:
    """A rule like ``rule`` whose weight is a view of the parameter ``base``.

    Only ``accumulate`` differs from that of ``rule``: it adds to the gradient of ``base``.
    ``offset``: the number of elements between the first element of ``base`` and that of the view in
    their storage.
    """

    rule: Rule
    base: Tensor
    offset: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        grad = self.base.grad
        if grad is None:
            grad = self.base.grad = torch.zeros_like(self.base, dtype=self.base.grad_dtype)
        if grad.stride() == self.base.stride():
            self._accumulate_into(grad, x, dy)
            return
        added = torch.zeros_like(self.base, dtype=grad.dtype)
        self._accumulate_into(added, x, dy)
        grad.add_(added)

    def _accumulate_into(self, grad: Tensor, x: Tensor, dy: Tensor) -> None:
        view = self.rule.weight
        part = view.detach()
        part.grad_dtype = grad.dtype
        start = grad.storage_offset() + self.offset
        part.grad = grad.as_strided(view.shape, view.stride(), start)
        replace(self.rule, weight=part).accumulate(x, dy)


AnyRule: TypeAlias = Rule | OfView


def of_view(rule: Rule) -> OfView | None:
    """Returns ``rule`` as an :class:`OfView`, if its weight is a view of another tensor.

    Returns None if the weight is not a view that requires a gradient, if the viewed tensor is a
    DTensor or has another dtype, or if the view contains an element twice.
    """
    view = rule.weight
    base = view._base if view.requires_grad else None
    if base is None or base.dtype is not view.dtype or is_dtensor(base):
        return None
    sizes = sorted((step, n) for step, n in zip(view.stride(), view.shape, strict=True) if n > 1)
    reached = 1
    for step, count in sizes:
        if step < reached:
            return None
        reached = step * count
    return OfView(rule, base, int(view.storage_offset() - base.storage_offset()))
