"""The sum of a stage's weight gradients while their accumulator D goes from rank to rank.

::

    D is here          parameters' .grad are views of D: autograd adds to it
    D is still to come .grad are views of a sum kept here, which D takes over when it comes
                       (or which leaves as D, where D starts on this rank)
    no D leaves any more (on the owner alone)   .grad are the owner's own

Where D is sent in a dtype of its own, nothing is added to it while it is here: the sum kept is
added to it when it leaves, in the wider of the two dtypes, so that a D is rounded once a hop.
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
        self._adds_to_received = sent_dtype == layout.dtype  # whether D itself does
        self._left = 0  # D's that are still to leave
        self._own: list[Tensor | None] = []  # .grad as it is without a bound sum
        self._sum: Tensor | None = None  # what .grad are views of
        self._received: Tensor | None = None  # the same, where that is a D
        self._unsure: list[nn.Parameter] = []  # whose gradient came with D's alone

    def begin(self, leaving: int) -> None:
        """Before a step in which so many D's leave the rank."""
        self._left = leaving
        self._unsure = []  # one that failed may have left some

    def ready(self) -> None:
        """Before an op that adds to the gradients."""
        if self._sum is None and self._left > 0:
            self._bind(self._zeros())

    def arrive(self, received: Tensor) -> None:
        """D has come: it takes over what was kept, and what is added from now on.

        Where another D of the stage is here, gradients go on being added to that one.
        """
        if self._received is None and self._adds_to_received:
            kept = self._sum
            self._unbind()
            if kept is not None:
                received += kept
            self._bind(received)
            self._received = received

    def leave(self, received: Tensor | None) -> Tensor:
        """The D that leaves, of the one that came as ``received``; None: it starts here."""
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
        """D has come to the owner to stay: adds it to the owner's gradients."""
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
        """All is added: what nothing was added to has no gradient (:mod:`.gradients`).

        The host waits to learn that, where the owner itself had added nothing when a D came.
        """
        unsure, self._unsure = self._unsure, []
        clear_unused(unsure)

    def _started(self, found: Tensor | None) -> Tensor:
        """A D that sets out here, with what was kept."""
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
