"""A stage's parameters as one flat tensor, and its gradients as another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import local, set_local

ALIGNMENT = 64  # bytes: what vector loads and matrix kernels like
WHERE = "where weights are streamed or param_dtype is given"


class Layout:
    """The place of each of ``parameters`` in a flat tensor of ``size`` elements (at least one), of
    DTensors the part that is here.

    ``spacing``: the elements to a multiple of which each is aligned; by default :data:`ALIGNMENT`.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], dtype: torch.dtype, spacing: int | None = None
    ) -> None:
        self.parameters = parameters
        self.dtype = dtype
        step = spacing or max(1, ALIGNMENT // dtype.itemsize)
        self._starts: list[int] = []
        self._shapes = [local(parameter).shape for parameter in parameters]
        at = 0
        for shape in self._shapes:
            self._starts.append(at)
            at += math.ceil(shape.numel() / step) * step
        self.size = max(1, at)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The part of ``flat`` of each parameter, in the shape that it has here."""
        return [
            flat[start : start + shape.numel()].view(shape)
            for start, shape in zip(self._starts, self._shapes, strict=True)
        ]


class FlatWeights:
    """Moves a module's parameters into one flat tensor, whose memory can be given back.

    The parameters stay the same objects and their data views of the same storage, so that what
    autograd saved in F (a weight, or a view of it) sees in B whatever the storage then holds.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.flat = torch.zeros(layout.size, dtype=layout.dtype, device=device)
        self._views = list(zip(layout.parameters, layout.views(self.flat), strict=True))
        with torch.no_grad():
            for parameter, view in self._views:
                view.copy_(local(parameter))
        self.bind()
        self._bytes = self.flat.untyped_storage().nbytes()

    def bind(self) -> None:
        """Makes these the parameters' data."""
        for parameter, view in self._views:
            set_local(parameter, view)

    def fill(self, values: Tensor) -> None:
        """Takes memory again and copies ``values`` into it."""
        self.allocate()
        self.flat.copy_(values)

    def allocate(self) -> None:
        self.flat.untyped_storage().resize_(self._bytes)

    def release(self) -> None:
        self.flat.untyped_storage().resize_(0)


def common_dtype(
    modules: Sequence[nn.Module], device: torch.device, other: torch.dtype | None = None
) -> torch.dtype:
    """The one dtype of all parameters, or the ``other`` one of none.

    Raises InputError where they differ in dtype or device.
    """
    parameters = [p for module in modules for p in module.parameters()]
    dtypes = {p.dtype for p in parameters}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise InputError(f"stages: {WHERE} all parameters need one dtype, got {names}")
    elsewhere = {str(p.device) for p in parameters if p.device != device}
    if elsewhere:
        raise InputError(
            f"stages: {WHERE} all parameters need to be on {device}, some are on "
            f"{', '.join(sorted(elsewhere))}"
        )
    return dtypes.pop() if dtypes else other or torch.get_default_dtype()
