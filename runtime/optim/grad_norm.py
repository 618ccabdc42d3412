"""The norm of all ranks' gradients, which determines whether and how the optimizers step.

The ranks' sums of squares are always added in the same order
(:func:`~pipeloom.ir.model.transfers.stepping`), so every rank gets the same bits, whether the
sums are gathered by an all-reduce or relayed from rank to rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import dropwhile, pairwise
from operator import add

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.transfers import stepping

from ..measure.op_timer import Call
from ..rank.context import RankContext
from ..rank.options import MakeOptimizer
from ..transport import Handle, Routes, Transport


@dataclass(frozen=True, slots=True)
class GlobalNorm:
    """The ``norm`` of all gradients as one vector, and its limit ``most`` (inf: no limit).

    As in ``torch.nn.utils.clip_grad_norm_``, gradients are scaled by ``most / (norm + 1e-6)`` if
    that is below 1. A step whose norm is NaN or Inf is skipped.
    """

    norm: float
    most: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm)

    @property
    def plain(self) -> bool:
        """Whether the optimizers step with unclipped gradients.

        False if gradients must be clipped, or if the step is skipped because the norm is NaN or
        Inf.
        """
        return self.finite and self.norm + 1e-6 <= self.most


class GatheredNorm:
    """Sums one value per rank by one all-reduce, for which all ranks wait.

    ``order``: all ranks, in the order in which their values are added; ``add`` returns the total.
    """

    last = True

    def __init__(self, transport: Transport, order: Sequence[int], device: torch.device) -> None:
        self._transport, self._order = transport, order
        self._ranks, self._device = tuple(sorted(order)), device

    def add(self, value: float) -> float:
        parts = [value if rank == self._transport.rank else 0.0 for rank in self._order]
        if len(parts) > 1:
            gathered = torch.tensor(parts, dtype=torch.float64, device=self._device)
            self._transport.all_reduce(gathered, self._ranks)
            parts = gathered.tolist()
        return reduce(add, parts)  # in order; sum() would round differently


class NormRelay:
    """Sums one value per rank by messages from rank to rank along ``order``.

    The last rank thus gets the total, and sends it back in reverse order. ``add`` adds this rank's
    value and returns the sum of the values of all ranks in ``order`` up to this one; ``last``:
    whether this sum is the total. ``total`` waits for the total and returns it; it is called once
    after each ``add``. ``transport`` carries no other messages. A rank waits until a message is
    sent before it sends the next one to the same rank.
    """

    def __init__(self, transport: Transport, order: Sequence[int], device: torch.device) -> None:
        at = order.index(transport.rank)
        self._before = order[at - 1] if at > 0 else None
        self._after = order[at + 1] if at + 1 < len(order) else None
        self.last = self._after is None
        self._transport, self._device = transport, device
        self._sent: dict[int, tuple[Handle, Tensor]] = {}
        self._sum = 0.0

    def add(self, value: float) -> float:
        self._sum = (0.0 if self._before is None else self._receive(self._before)) + value
        if self._after is not None:
            self._send(self._sum, self._after)
        return self._sum

    def total(self) -> float:
        if self._after is not None:
            self._sum = self._receive(self._after)
        if self._before is not None:
            self._send(self._sum, self._before)
        return self._sum

    def close(self) -> None:
        """Closes the transport; all ranks call it."""
        for handle, _ in self._sent.values():
            handle.wait()
        self._transport.close()

    def _send(self, value: float, peer: int) -> None:
        if peer in self._sent:
            self._sent[peer][0].wait()
        message = torch.tensor([value], dtype=torch.float64, device=self._device)
        self._sent[peer] = self._transport.send(message, peer), message

    def _receive(self, peer: int) -> float:
        message = torch.empty(1, dtype=torch.float64, device=self._device)
        self._transport.recv(message, peer).wait()
        return float(message)


def make_norm_sum(context: RankContext) -> tuple[GatheredNorm | NormRelay | None, Call]:
    """Returns the object that sums the ranks' squares for the norm, and a function to close it.

    If the program relays norms, the object is a :class:`NormRelay` on ranks that own stages, and
    None on others. Otherwise, it is a :class:`GatheredNorm` on all ranks, as the loss scale depends
    on the total. If no norm is needed, it is None. All ranks call both this function and the
    returned one. Raises InputError as :func:`check_norm_options`.
    """
    options, device = context.options, context.device
    if not options.needs_norm:
        return None, lambda: None
    check_norm_options(context.program, options.clip_grad_norm, options.optimizer)
    order = stepping(context.role.holders)
    if not context.relays:
        others = (rank for rank in range(context.transport.size) if rank not in order)
        return GatheredNorm(context.transport, (*order, *others), device), lambda: None
    pairs = list(pairwise(order))
    channels = {*pairs, *((after, before) for before, after in pairs)}
    own = context.transport.beside(Routes.of(channels, (), options.timeout))
    if own.rank not in order:
        return None, own.close
    relay = NormRelay(own, order, device)
    return relay, relay.close


def check_norm_options(
    program: Program, most: float | None, optimizer: MakeOptimizer | None
) -> None:
    """Raises InputError if the optimizer steps of ``program`` cannot depend on the norm.

    They cannot if there is no ``optimizer``, or if a rank still computes or communicates after its
    first step, so that not all gradients are known before it. InputError is also raised if the
    maximum norm ``most`` (the option ``clip_grad_norm``) is not positive.
    """
    name = "loss_scale" if most is None else "clip_grad_norm"
    if most is not None and not most > 0:
        raise InputError(f"clip_grad_norm: expected more than 0, got {most}")
    if optimizer is None:
        raise InputError(f"{name}: expected an optimizer, which steps after it, got None")
    for rank, row in enumerate(program.instructions):
        after = dropwhile(lambda i: not isinstance(i, ir.Step), row)
        early = [i for i in after if not isinstance(i, ir.Step | ir.WaitSend | ir.Free)]
        if early:
            raise InputError(
                f"{name}: expected a program that steps once all else is done, got '{early[0]}' "
                f"after a step on rank {rank}"
            )
