"""A stage's parameters as one message."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import local, set_local
from ..tensors.packed_message import PackedMessage, Spec

WHERE = "where weights are streamed or param_dtype is given"


def message_of(parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> PackedMessage:
    """Returns the message of the parameters' local parts, or of their gradients, in ``dtype``."""
    return PackedMessage([Spec(tuple(local(p).shape), dtype) for p in parameters])


class FlatWeights:
    """Moves parameters into one ``message``, whose memory can be freed temporarily.

    The parameters stay the same objects, and their data become views of one storage. So what
    autograd saved in F (a weight or a view of it) refers in B to the storage's current content.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], message: PackedMessage, device: torch.device
    ) -> None:
        self._parameters, self._bytes = parameters, message.nbytes
        self.flat = message.place(torch.zeros(message.nbytes, dtype=torch.uint8, device=device))
        self._views = message.tensors(self.flat)
        self.copy([local(parameter.detach()) for parameter in parameters])

    @torch.no_grad()
    def copy(self, values: Sequence[Tensor]) -> None:
        """Copies the parameters' values from tensors of any dtype."""
        for view, value in zip(self._views, values, strict=True):
            view.copy_(value)
        bind(self._parameters, self._views)

    def allocate(self) -> None:
        self.flat.untyped_storage().resize_(self._bytes)

    def release(self) -> None:
        self.flat.untyped_storage().resize_(0)


def bind(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    """Makes ``values`` the local data of the parameters."""
    for parameter, value in zip(parameters, values, strict=True):
        set_local(parameter, value)


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
