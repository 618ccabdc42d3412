"""Stores a stage's parameters as one message, so that they are sent without packing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import local, set_local
from ..tensors.packed_message import PackedMessage, Spec

WHERE = "where weights are streamed or param_dtype is given"


def message_of(parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> PackedMessage:
    """Returns the layout of a message with the parameters' local parts, in ``dtype``.

    Their gradients have the same layout.
    """
    return PackedMessage([Spec(tuple(local(p).shape), dtype) for p in parameters])


class FlatWeights:
    """One tensor, ``flat``, with a stage's parameters; its memory can be freed between ops.

    The parameters stay the same objects, and their data become views of one storage. So tensors
    that autograd saved in F (a weight or a view of it) refer in B to the storage's current content.
    ``message``: the layout of ``flat``. ``release`` frees the memory, and ``allocate`` allocates it
    again, without values.
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
        """Copies ``values`` into ``flat``, and makes the parameters views of it.

        There is one value per parameter, of any dtype.
        """
        for view, value in zip(self._views, values, strict=True):
            view.copy_(value)
        bind(self._parameters, self._views)

    def allocate(self) -> None:
        self.flat.untyped_storage().resize_(self._bytes)

    def release(self) -> None:
        self.flat.untyped_storage().resize_(0)


def bind(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    """Makes each of ``values`` the local data of the parameter at the same position."""
    for parameter, value in zip(parameters, values, strict=True):
        set_local(parameter, value)


def common_dtype(
    modules: Sequence[nn.Module], device: torch.device, other: torch.dtype | None = None
) -> torch.dtype:
    """Returns the dtype that all parameters of ``modules`` have in common.

    Without parameters, returns ``other``, or torch's default dtype if ``other`` is None. Raises
    InputError if parameters differ in dtype or are not all on ``device``.
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
