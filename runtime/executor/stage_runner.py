"""Runs F, B, W and BW of one stage on one microbatch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from pipeloom.ir.model.ops import OpKind

from ..dtensors import arrived, is_dtensor
from ..measure.memory import Held, Memory
from ..rank.options import Loss
from ..tensors.forward_state import KeptBuffer
from ..tensors.rng_state import RandomState, generators_of
from ..tensors.stage_interface import StageInterface
from ..tensors.trees import mapped
from .offload import OffloadedActivations
from .outputs import as_tuple, checked_loss
from .skip_connections import Skips
from .weight_grad_deferral import Deferral, WeightQueue, gradient_edge, lies_in, run_backward

SMALL = 1 << 16  # bytes; F's outputs up to this size are kept until B; the ledger ignores them
Using = Callable[[OpKind], AbstractContextManager[object]]  # op kind -> context to run the op in


class Cell:
    """The tensors of one microbatch on one stage of this rank, from before F to after W.

    ``inputs``, ``options``: positional and keyword arguments of F.
    ``interface``: shapes and dtypes of F's outputs; None on the last stage.
    ``output``, ``dx``: F's outputs (with their autograd graph) and B's gradients of the inputs,
    until they are sent or moved to another cell.
    ``roots``, ``dy``: outputs (or their autograd nodes) at which the backward pass starts, and the
    gradients of the loss with respect to these outputs.
    ``target``: on the last stage, a pair of the loss's target and its keyword arguments.
    ``result``, ``loss``: on the last stage, the output and the loss of the microbatch, detached.
    ``queue``: deferred weight gradients; None if B and W run as one op (BW).
    ``recomputed``: whether the microbatch has an R, which runs F again with the random state
    ``state`` and the ``buffers`` from before F. Until R, the ledger (the count of activation bytes)
    includes the inputs, as ``held``.
    ``offloaded``: the offloaded activations; None if nothing is offloaded.
    ``graphs``: if the stage runs as graphs (:mod:`..graphs.graph_runner`), their functions; False
    if it cannot, None if not known yet. ``kept``: the values that graphs keep between ops.
    """

    __slots__ = (
        "buffers", "dx", "dy", "graphs", "held", "inputs", "interface", "kept", "loss",
        "offloaded", "options", "output", "queue", "recomputed", "result", "roots",
        "state", "target",
    )  # fmt: skip

    def __init__(
        self,
        queue: WeightQueue | None,
        interface: StageInterface | None = None,
        *,
        recomputed: bool = False,
        offloaded: OffloadedActivations | None = None,
    ) -> None:
        self.queue, self.interface = queue, interface
        self.recomputed, self.offloaded = recomputed, offloaded
        self.graphs: Any = None
        self.kept: Any = None
        self.clear()

    def clear(self) -> None:
        """Drops all values that a step has stored in the cell."""
        self.inputs: tuple[Any, ...] = ()  # tensors; on the first stage possibly other objects
        self.options: Mapping[str, Any] = {}
        self.roots: tuple[GradientEdge | Tensor, ...] = ()
        self.dy: tuple[Tensor, ...] = ()
        self.dx: tuple[Tensor, ...] = ()
        self.output: tuple[Tensor, ...] = ()
        self.result: Any = None
        self.loss: Tensor | None = None
        self.target: Any = None
        self.state: RandomState | None = None
        self.buffers: Sequence[KeptBuffer] = ()
        self.held: Held = ()
        for held in (self.offloaded, self.queue, self.kept):
            if held is not None:
                held.clear()
        self.kept = None


Run = Callable[[Cell], None]


class StageRunner:
    """Runs one stage as its ``module``; one object serves all microbatches.

    ``forward``, ``backward`` (B or BW) and ``weight`` run an op on the cell that they are given.
    ``bare`` is ``forward`` without counting saved tensors in the ledger.

    Arguments:
        memory: the ledger, which counts the bytes of activations.
        parameters: the parameters that ops compute with; by default those of the module.
        leaving: tensors whose memory is freed after each op; one of them is enough if they share
            a storage.
        using: returns the context in which ops of the given kind run.
        skips: the skip connections of all stages.
        last: whether it is the last stage, which computes ``loss`` and starts its backward with
            the gradient ``seed`` of the loss (1 / M for gradients of the mean over microbatches).
    """

    def __init__(
        self,
        stage: int,
        module: nn.Module,
        *,
        memory: Memory,
        last: bool,
        loss: Loss | None,
        seed: Tensor,
        parameters: Iterable[nn.Parameter] | None = None,
        leaving: Sequence[Tensor] = (),
        using: Using = lambda _: nullcontext(),
        skips: Skips,
    ) -> None:
        self.stage, self.module, self.memory = stage, module, memory
        self.buffers = [(part, name) for part in module.modules() for name in part._buffers]
        self.generators = generators_of(module)
        self._using, self._leaving = using, leaving
        self._deferral = Deferral(
            module.parameters() if parameters is None else parameters, leaving
        )
        self._last, self._loss, self._seed = last, loss, seed
        self._around = partial(skips.around, stage)
        self._module = self._around(module)
        self._seeds: dict[tuple[torch.dtype, int], Tensor] = {}
        self.keep_outputs = True
        self._run_as(self._forward, self._backward, self._weight)

    def _run_as(
        self, forward: Run, backward: Run, weight: Run, *, counted: Run | None = None
    ) -> None:
        """Sets the functions that run F, B and W, each in its context (``using``).

        ``counted``: F in which the ledger counts saved tensors; by default, ``forward`` in the
        ledger's context.
        """
        if counted is None:
            counted = within(self.memory.watching(), forward)
        self.bare = within(self._using(OpKind.F), forward)
        self.forward = within(self._using(OpKind.F), counted)
        self.backward = within(self._using(OpKind.B), backward)
        self.weight = within(self._using(OpKind.W), weight)

    def prepare(self, cell: Cell, inputs: Sequence[Any]) -> None:
        """Prepares to run the ops of ``cell`` for arguments like ``inputs``; here, does nothing."""

    def _forward(self, cell: Cell) -> None:
        inputs, queue = cell.inputs, cell.queue
        if queue is None:
            output = self._module(*inputs, **cell.options)
        else:
            # leave the mode immediately: it would intercept every tensor operation
            with self._deferral.into(queue):
                output = self._module(*inputs, **cell.options)
        if self._last:
            self._finish(cell, output)
        else:
            self._hand_on(cell, output)

    def _backward(self, cell: Cell) -> None:
        queue = cell.queue
        if queue is None or not queue.again:
            run_backward(cell.roots, cell.dy)
        else:
            with self._deferral.into(queue):
                run_backward(cell.roots, cell.dy)
        if self.stage > 0:
            cell.dx = tuple([_gradient(x, cell.dy) for x in cell.inputs if x.requires_grad])
        cell.inputs, cell.roots, cell.dy = (), (), ()

    def _weight(self, cell: Cell) -> None:
        assert cell.queue is not None
        cell.queue.run()

    def _hand_on(self, cell: Cell, output: Any) -> None:
        interface = cell.interface
        assert interface is not None
        outputs = (output,) if type(output) is Tensor else as_tuple(output)
        if not interface.fits(outputs):
            raise interface.unlike(self.stage, StageInterface.of(outputs))
        # keeping a small output until B is cheaper than keeping its graph without it
        sizes = zip(outputs, interface.nbytes)  # noqa: B905
        cell.roots = tuple(
            [x if size <= SMALL else gradient_edge(x) for x, size in sizes if x.requires_grad]
        )
        received = self._given_back(cell)
        cell.output = tuple([apart_from(x, received) for x in outputs])

    def _given_back(self, cell: Cell) -> Sequence[Tensor]:
        """Returns the tensors whose memory may be reused or freed before F's outputs are sent.

        These are the inputs that were received or came from another stage, and those in
        ``leaving``.
        """
        return (*(cell.inputs if self.stage > 0 else ()), *self._leaving)

    def _finish(self, cell: Cell, output: Any) -> None:
        loss = self._judged(cell, output)
        if type(loss) is not Tensor:
            loss = arrived(loss.full_tensor() if is_dtensor(loss) else loss)
        key = loss.dtype, self._seed._version  # the version changes with a dynamic loss scale
        seed = self._seeds.get(key)
        if seed is None:
            self._seeds = {key: (seed := self._seed.to(loss.dtype, copy=True))}
        cell.roots, cell.dy = (loss,), (seed,)
        cell.loss = loss.detach()
        self._keep(cell, output)

    def _judged(self, cell: Cell, output: Any) -> Tensor:
        assert self._loss is not None
        (target, options), cell.target = cell.target, None
        found = self._loss(output, target, **options)
        return found if type(found) is Tensor and found.dim() == 0 else checked_loss(found)

    def _keep(self, cell: Cell, output: Any) -> None:
        """Stores the detached output in ``cell.result``.

        Tensors whose memory is in a receive buffer are copied, as it is reused.
        """
        if self.keep_outputs:
            received = self._given_back(cell)
            if type(output) is Tensor:
                cell.result = apart_from(output.detach(), received)
            else:
                cell.result = mapped(lambda x: apart_from(x.detach(), received), output)


def apart_from(tensor: Tensor, received: Sequence[Tensor]) -> Tensor:
    """Returns ``tensor``, or a copy if it shares memory with a tensor in ``received``.

    The memory of ``received`` is reused or freed while ``tensor`` is still needed.
    """
    return tensor.clone() if lies_in(tensor, received) else tensor


def _gradient(x: Tensor, dy: Sequence[Tensor]) -> Tensor:
    """Returns the gradient of the stage's input ``x``, and sets ``x.grad`` to None.

    Returns zeros if no output depends on ``x``. A gradient that shares memory with ``dy``, the
    gradients of the outputs, is copied.
    """
    dx, x.grad = x.grad, None
    if dx is None:
        return torch.zeros_like(x)
    return apart_from(dx if type(dx) is Tensor else arrived(dx), dy)


def within(context: AbstractContextManager[object], run: Run) -> Run:
    """Returns a function that calls ``run`` inside ``context``, which must be reusable."""
    if isinstance(context, nullcontext):
        return run

    def inside(cell: Cell) -> None:
        with context:
            run(cell)

    return inside
