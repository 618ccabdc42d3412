"""A stage's parameters as one flat tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import local, set_local

SPACING = 64  # elements: in each dtype, parameters start at multiples of at least 64 bytes
WHERE = "where weights are streamed or param_dtype is given"


class Layout:
    """The positions of ``parameters`` in a flat tensor of ``size`` elements (at least one).

    Of a DTensor, only the local part counts. Each parameter starts at a multiple of
    :data:`SPACING`.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self._shapes = [local(parameter).shape for parameter in parameters]
        self._lengths = [-(-shape.numel() // SPACING) * SPACING for shape in self._shapes]
        self.size = max(1, sum(self._lengths))

    def views(self, flat: Tensor) -> list[Tensor]:
        """Returns the view of ``flat`` for each parameter, in its local shape."""
        parts = torch.split(flat[: sum(self._lengths)], self._lengths)
        return [
            part[: shape.numel()].view(shape)
            for part, shape in zip(parts, self._shapes, strict=True)
        ]


class FlatWeights:
    """Moves a module's parameters into one flat tensor, whose memory can be freed temporarily.

    The parameters stay the same objects, and their data become views of one storage. So what
    autograd saved in F (a weight or a view of it) refers in B to the storage's current content.
    """

    def __init__(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> None:
        self.flat = torch.zeros(layout.size, dtype=dtype, device=device)
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
