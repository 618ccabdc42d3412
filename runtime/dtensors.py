"""DTensors: the part of one that is on this process, and the layout of parameters that are."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:  # takes a second to import, and whoever has made one has done so
    from torch.distributed.tensor import DTensor

PLAIN = (Tensor, nn.Parameter)


def is_dtensor(tensor: object) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor, asked without importing them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The tensors with memory that it is made of: itself, or those inside of a subclass."""
    if type(tensor) in PLAIN or not is_traceable_wrapper_subclass(tensor):
        return (tensor,)
    names, _ = tensor.__tensor_flatten__()
    inside = (getattr(tensor, name) for name in names)
    return tuple(part for x in inside if isinstance(x, Tensor) for part in parts(x))


class _Arrived(torch.autograd.Function):
    """The tensor that a collective under way leaves, once it is waited for."""

    @staticmethod
    def forward(_: Any, under_way: AsyncCollectiveTensor) -> Tensor:
        found: Tensor = under_way.trigger_wait()  # type: ignore[no-untyped-call]
        return found.detach()

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:
        return dy


def arrived(tensor: Tensor) -> Tensor:
    """The tensor that a collective under way leaves, or ``tensor`` itself; differentiable."""
    if not isinstance(tensor, AsyncCollectiveTensor):
        return tensor
    found: Tensor = _Arrived.apply(tensor)  # type: ignore[no-untyped-call]
    return found


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """This process's part of a DTensor, sharing its memory; any other tensor itself."""
    return arrived(tensor.to_local()) if is_dtensor(tensor) else tensor


def whole(parameter: Tensor, part: Tensor) -> Tensor:
    """``part``, shaped as :func:`local` of ``parameter``, as a tensor that is laid out as it.

    Differentiable: the part's gradient is laid out as the part, by collectives where need be.
    """
    if not is_dtensor(parameter):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


@torch.no_grad()
def like(parameter: Tensor, part: Tensor) -> Tensor:
    """The same, of values alone."""
    return whole(parameter, part)


def set_local(parameter: nn.Parameter, part: Tensor) -> None:
    """Makes ``part`` the memory of this process's data, maybe in another dtype; same object.

    How often ``part`` is changed in place is not counted as changes of the parameter.
    """
    part = part.data
    data = like(parameter, part)
    parameter.data = data
    if is_dtensor(data):  # set_data knows of the wrapper alone
        inside: Any = parameter
        inside._local_tensor, inside._spec = part, data._spec


@torch.no_grad()
def lay_out(parameters: Iterable[nn.Parameter]) -> None:
    """Gradients as their parameters are: torch leaves some as sums that are still to be made over
    a mesh, and others whole. All processes of the meshes call it."""
    for parameter in parameters:
        gradient, layout = parameter.grad, getattr(parameter, "placements", None)
        if is_dtensor(gradient) and gradient.placements != layout:
            parameter.grad = gradient.redistribute(placements=layout)
