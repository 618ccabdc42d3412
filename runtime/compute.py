"""One stage's F, B, W and BW on one microbatch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipeloom.ir.ops import OpKind

from .deferral import Deferral, WeightQueue, run_backward
from .errors import ShapeError
from .memory import Memory
from .shapes import Spec

Loss = Callable[[Tensor, Tensor], Tensor]
Using = Callable[[OpKind], AbstractContextManager[object]]


def _unchanged(kind: OpKind) -> AbstractContextManager[object]:
    """The context of ops whose weights are where they are."""
    return nullcontext()


class Cell:
    """What one rank has of one microbatch on one stage, from before F to after W.

    ``inputs``: F's arguments; ``edge``: where B starts; ``dy``: the gradient that B starts with;
    ``output`` and ``dx``: what F and B hand on; ``queue``: None where BW is fused.
    """

    __slots__ = ("dx", "dy", "edge", "inputs", "loss", "output", "queue", "target")

    def __init__(self, queue: WeightQueue | None) -> None:
        self.queue = queue
        self.clear()

    def clear(self) -> None:
        self.inputs: tuple[Tensor, ...] = ()
        self.edge: GradientEdge | None = None
        self.dy: Tensor | None = None
        self.dx: Tensor | None = None
        self.output: Tensor | None = None
        self.loss: Tensor | None = None
        self.target: Tensor | None = None
        if self.queue is not None:
            self.queue.clear()


class StageRunner:
    """Runs one stage; the same object for all microbatches.

    ``using``: the context for an op of each kind. ``spec``: what the stage sends on; None for the
    last one, which computes ``loss`` instead and starts its backward with ``seed`` (1 / M, so that
    gradients are those of the mean loss).
    """

    def __init__(
        self,
        stage: int,
        module: nn.Module,
        *,
        using: Using = _unchanged,
        memory: Memory,
        spec: Spec | None,
        loss: Loss | None,
        seed: Tensor,
    ) -> None:
        self.stage = stage
        self.module = module
        self._watching = memory.watching()
        self._deferral = Deferral(module.parameters())
        self._spec = spec
        self._loss = loss
        self._seed = seed
        self._forward, self._backward, self._weight = map(using, (OpKind.F, OpKind.B, OpKind.W))
        self.keep_outputs = True

    def forward(self, cell: Cell) -> None:
        with self._forward, self._watching:
            with self._deferring(cell):
                output = self.module(*cell.inputs)
            if self._spec is None:  # outside of the mode, which every access to a tensor passes
                self._finish(cell, output)
            else:
                self._hand_on(cell, output, self._spec)

    def backward(self, cell: Cell) -> None:
        """B, or BW where the cell has no queue."""
        edge, dy = cell.edge, cell.dy
        assert edge is not None
        assert dy is not None
        with self._backward, self._deferring(cell):
            run_backward(edge, dy)
        x = cell.inputs[0]
        if self.stage > 0:
            dx = x.grad
            cell.dx = torch.zeros_like(x) if dx is None else dx
            x.grad = None
        cell.inputs, cell.edge, cell.dy = (), None, None

    def weight(self, cell: Cell) -> None:
        assert cell.queue is not None
        with self._weight:
            cell.queue.run()

    def _deferring(self, cell: Cell) -> AbstractContextManager[object]:
        if cell.queue is None:
            return _NOTHING
        self._deferral.queue = cell.queue
        return self._deferral

    def _hand_on(self, cell: Cell, output: Tensor, spec: Spec) -> None:
        if output.shape != spec.shape or output.dtype is not spec.dtype:
            raise ShapeError(
                f"stage {self.stage}: its output is {Spec.of(output)}, was {spec} in the first "
                "step; all microbatches must have one shape"
            )
        cell.edge = get_gradient_edge(output)
        cell.output = output.detach()
        if self.stage > 0 and output.data_ptr() == cell.inputs[0].data_ptr():
            cell.output = cell.output.clone()  # its buffer is freed before this message has left

    def _finish(self, cell: Cell, output: Tensor) -> None:
        assert self._loss is not None
        assert cell.target is not None
        loss = self._loss(output, cell.target)
        cell.edge, cell.dy = get_gradient_edge(loss), self._seed.to(loss.dtype)
        cell.loss, cell.target = loss.detach(), None
        if self.keep_outputs:
            cell.output = output.detach()


_NOTHING = nullcontext()
