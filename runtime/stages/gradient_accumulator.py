"""Sums a stage's weight gradients while their accumulator D moves from rank to rank.

::

    D is here          parameters' .grad are views of D: autograd adds to it
    D is still to come .grad are views of a local sum, which is added to D when it arrives
                       (or is sent as D, if D starts on this rank)
    no D leaves any more (only on the owner)     .grad are the owner's own

If D is sent in another dtype, nothing is added to it while it is here. The local sum is added when
D leaves, in the wider of the two dtypes, so that D is rounded once per hop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..dtensors import lay_out, like, local
from .flat_parameters import Layout
from .gradients import clear_unused, nothing


class GradientAccumulator:
    """The gradients of one stage on one rank.

    ``layout`` has the dtype of the sums, ``sent_dtype`` is that of D.
    """

    def __init__(self, layout: Layout, device: torch.device, sent_dtype: torch.dtype) -> None:
        self._layout, self._device, self._sent_dtype = layout, device, sent_dtype
        self._adds_to_received = sent_dtype == layout.dtype  # whether .grad can be views of D
        self._left = 0  # number of D's that are still to leave
        self._own: list[Tensor | None] = []  # .grad without a bound sum
        self._sum: Tensor | None = None  # flat tensor of which .grad are views
        self._received: Tensor | None = None  # the same tensor, if it is a received D
        self._unsure: list[nn.Parameter] = []  # gradients only received with D's, maybe unused

    def begin(self, leaving: int) -> None:
        """Prepares a step in which ``leaving`` D's leave the rank."""
        self._left = leaving
        self._unsure = []  # a failed step may have left some

    def ready(self) -> None:
        """Prepares for an op that adds to the gradients."""
        if self._sum is None and self._left > 0:
            self._bind(self._zeros())

    def arrive(self, received: Tensor) -> None:
        """Receives a D: adds the local sum to it, and further gradients from now on.

        If another D of the stage is here, further gradients are still added to that one.
        """
        if self._received is None and self._adds_to_received:
            kept = self._sum
            self._unbind()
            if kept is not None:
                received += kept
            self._bind(received)
            self._received = received

    def leave(self, received: Tensor | None) -> Tensor:
        """Returns the D to send, given the ``received`` one; None: it starts here."""
        self._left -= 1
        if self._received is not None and self._received is not received:
            # gradients are added to another D
            return self._started(None) if received is None else received
        found = self._sum
        self._unbind()
        if received is None:
            return self._started(found)
        if found is not None and found is not received:
            received += found
        return received

    @torch.no_grad()
    def come_home(self, received: Tensor) -> None:
        """Adds a D that has reached the owner to the owner's gradients."""
        kept, received_sum = self._sum, self._received
        self._unbind()
        views = self._layout.views(received)
        lay_out(self._layout.parameters)
        for parameter, gradient in zip(self._layout.parameters, views, strict=True):
            if parameter.grad is None:
                parameter.grad = like(parameter, gradient.to(self._layout.dtype, copy=True))
                self._unsure.append(parameter)
            else:
                local(parameter.grad).add_(gradient)
        if kept is not None:
            self._bind(kept)
            self._received = received_sum

    def settle(self) -> None:
        """Removes gradients to which nothing was added (:mod:`.gradients`), after all additions.

        The host waits for the device if a D arrived before the owner itself had added anything.
        """
        unsure, self._unsure = self._unsure, []
        clear_unused(unsure)

    def _started(self, found: Tensor | None) -> Tensor:
        """Returns a D that starts here, with the local sum."""
        return (self._zeros() if found is None else found).to(self._sent_dtype)

    def _zeros(self) -> Tensor:
        size, dtype = self._layout.size, self._layout.dtype
        return torch.full((size,), nothing(dtype), dtype=dtype, device=self._device)

    def _bind(self, flat: Tensor) -> None:
        self._sum = flat
        self._own = [p.grad for p in self._layout.parameters]
        views = zip(self._layout.parameters, self._layout.views(flat), strict=True)
        self._set([like(parameter, view) for parameter, view in views])

    def _unbind(self) -> None:
        if self._sum is not None:
            self._sum = self._received = None
            self._set(self._own)

    def _set(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self._layout.parameters, gradients, strict=True):
            parameter.grad = gradient
