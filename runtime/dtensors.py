"""DTensors: their local part, and the layout of gradients."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:  # slow to import (about 1 s); only needed if the caller has created one
    from torch.distributed.tensor import DTensor

PLAIN = (Tensor, nn.Parameter)


def is_dtensor(tensor: object) -> TypeGuard[DTensor]:
    """Whether a value is a DTensor; does not import torch's DTensor module (about 1 s)."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Returns the plain tensors whose memory contains the values of ``tensor``.

    If ``tensor`` is of a subclass such as DTensor, these are the tensors inside it; otherwise, it
    is only ``tensor`` itself.
    """
    if type(tensor) in PLAIN or not is_traceable_wrapper_subclass(tensor):
        return (tensor,)
    names, _ = tensor.__tensor_flatten__()
    inside = (getattr(tensor, name) for name in names)
    return tuple(part for x in inside if isinstance(x, Tensor) for part in parts(x))


class _Arrived(torch.autograd.Function):
    """Waits for a pending collective and returns its result."""

    @staticmethod
    def forward(_: Any, under_way: AsyncCollectiveTensor) -> Tensor:
        found: Tensor = under_way.trigger_wait()  # type: ignore[no-untyped-call]
        return found.detach()

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:
        return dy


def arrived(tensor: Tensor) -> Tensor:
    """Waits for a collective whose result is ``tensor``, and returns the result; differentiable.

    Returns any other tensor unchanged.
    """
    if not isinstance(tensor, AsyncCollectiveTensor):
        return tensor
    found: Tensor = _Arrived.apply(tensor)  # type: ignore[no-untyped-call]
    return found


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """Returns the local part of a DTensor, which shares memory with it; other tensors unchanged."""
    return arrived(tensor.to_local()) if is_dtensor(tensor) else tensor


def whole(parameter: Tensor, part: Tensor) -> Tensor:
    """Returns a DTensor with the layout of ``parameter`` whose local part is ``part``.

    If ``parameter`` is no DTensor, returns ``part``. Differentiable: a gradient in a layout other
    than that of ``parameter`` is converted to it, by collectives if necessary.
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


def set_local(parameter: nn.Parameter, part: Tensor) -> None:
    """Makes ``part`` the local data of ``parameter``, which stays the same object.

    ``part`` may have another dtype. In-place changes of ``part`` do not increment the parameter's
    version counter.
    """
    part = part.data
    data = whole(parameter, part)
    parameter.data = data
    if is_dtensor(data):  # set_data only changes the wrapper
        inside: Any = parameter
        inside._local_tensor, inside._spec = part, data._spec


@torch.no_grad()
def lay_out(parameters: Iterable[nn.Parameter]) -> None:
    """Converts gradients that are DTensors to the layout of their parameters.

    torch leaves some gradients as partial sums over a mesh, and others unsharded. All processes of
    the parameters' meshes call this.
    """
    for parameter in parameters:
        gradient, layout = parameter.grad, getattr(parameter, "placements", None)
        if is_dtensor(gradient) and gradient.placements != layout:
            parameter.grad = gradient.redistribute(placements=layout)
