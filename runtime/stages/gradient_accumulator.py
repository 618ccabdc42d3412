"""Sums a stage's weight gradients in a message D, which is sent from rank to rank to the owner.

::

    a rank that does not own the stage    adds its parameters' .grad to the next D that it sends
    the owner                             adds each D that it receives to its parameters' .grad

If a D has another dtype than the gradients, it is rounded once on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..dtensors import lay_out, local, whole
from .flat_parameters import message_of
from .gradients import NOTHING, clear_unused


class GradientAccumulator:
    """The gradients of one stage's trained ``parameters`` on one rank, sent as D (gradient sum).

    ``owned``: whether the rank owns the stage. ``dtype``: the dtype of a D. ``message``: the layout
    of a D.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
        dtype: torch.dtype,
        *,
        owned: bool,
    ) -> None:
        self._parameters, self._device, self._owned = parameters, device, owned
        self.message = message_of(parameters, dtype)
        self._unsure: list[nn.Parameter] = []  # gradients only received with D's, maybe unused

    def begin(self) -> None:
        """Prepares a step: on a rank that does not own the stage, clears gradients.

        A step that failed may have left some.
        """
        self._unsure = []
        if not self._owned:
            self._clear()

    @torch.no_grad()
    def leave(self, received: Tensor | None) -> Tensor:
        """Returns the D to send.

        A rank that does not own the stage adds its gradients to it. ``received``: the D that this
        rank passes on, which is changed in place; None: a new D is created.
        """
        sent = received
        if sent is None:
            sent = self.message.empty(self._device)
            for view in self.message.tensors(sent):
                view.fill_(NOTHING)
        if not self._owned:
            lay_out(self._parameters)
            views = self.message.tensors(sent)
            for parameter, view in zip(self._parameters, views, strict=True):
                if parameter.grad is not None:
                    view.add_(local(parameter.grad))
            self._clear()
        return sent

    @torch.no_grad()
    def come_home(self, received: Tensor) -> None:
        """Adds a D that the owner has received to the gradients of the parameters."""
        lay_out(self._parameters)
        views = self.message.tensors(received)
        for parameter, view in zip(self._parameters, views, strict=True):
            if parameter.grad is None:
                dtype = parameter.grad_dtype or parameter.dtype
                parameter.grad = whole(parameter, view.to(dtype, copy=True))
                self._unsure.append(parameter)
            else:
                local(parameter.grad).add_(view)

    def settle(self) -> None:
        """Removes the gradients of parameters that no microbatch used (:mod:`.gradients`).

        Called when all gradients were added. The host waits for the device if a D arrived when
        parameters on the owner did not have gradients yet.
        """
        unsure, self._unsure = self._unsure, []
        clear_unused(unsure)

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
