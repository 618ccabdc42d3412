"""A stage's parameters as one flat tensor, and its gradients as another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import local, set_local

ALIGNMENT = 64  # bytes: suits vector loads and matrix kernels
WHERE = "where weights are streamed or param_dtype is given"


class Layout:
    """The positions of ``parameters`` in a flat tensor of ``size`` elements (at least one).

    Of a DTensor, only the local part counts. ``spacing``: each parameter starts at a multiple of
    this number of elements; by default :data:`ALIGNMENT` bytes.
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
        """Returns the view of ``flat`` for each parameter, in its local shape."""
        return [
            flat[start : start + shape.numel()].view(shape)
            for start, shape in zip(self._starts, self._shapes, strict=True)
        ]


class FlatWeights:
    """Moves a module's parameters into one flat tensor, whose memory can be freed temporarily.

    The parameters stay the same objects, and their data become views of one storage. So what
    autograd saved in F (a weight or a view of it) refers in B to the storage's current content.
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
        """Makes the views of this tensor the parameters' data."""
        for parameter, view in self._views:
            set_local(parameter, view)

    def fill(self, values: Tensor) -> None:
        """Allocates the memory again and copies ``values`` into it."""
        self.allocate()
        self.flat.copy_(values)

    def allocate(self) -> None:
        self.flat.untyped_storage().resize_(self._bytes)

    def release(self) -> None:
        self.flat.untyped_storage().resize_(0)


def common_dtype(
    modules: Sequence[nn.Module], device: torch.device, other: torch.dtype | None = None
) -> torch.dtype:
    """Returns the common dtype of all parameters; without parameters ``other`` or torch's default.

    Raises InputError if they differ in dtype or are not all on ``device``.
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
