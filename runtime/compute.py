"""One stage's F, B, W and BW on one microbatch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from pipeloom.ir.ops import OpKind

from .deferral import Deferral, WeightQueue, gradient_edge, run_backward
from .errors import ShapeError
from .memory import Memory
from .shapes import Spec

SMALL = 1 << 16  # bytes
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
        self.edge: GradientEdge | Tensor | None = None
        self.dy: Tensor | None = None
        self.dx: Tensor | None = None
        self.output: Tensor | None = None
        self.loss: Tensor | None = None
        self.target: Tensor | None = None
        if self.queue is not None:
            self.queue.clear()


Run = Callable[[Cell], None]


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
        self._deferral = Deferral(module.parameters())
        self._spec = spec
        self._loss = loss
        self._seed = seed
        self._seeds: dict[torch.dtype, Tensor] = {}
        self.keep_outputs = True
        forward = _within(memory.watching(), self._forward)
        self.forward = _within(using(OpKind.F), forward)
        self.backward = _within(using(OpKind.B), self._backward)
        self.weight = _within(using(OpKind.W), _weight)

    def calls(self, kind: OpKind) -> Run:
        """What runs an op of this kind on a cell; B is BW where the cell has no queue."""
        if kind is OpKind.F:
            return self.forward
        return self.weight if kind is OpKind.W else self.backward

    def _forward(self, cell: Cell) -> None:
        queue = cell.queue
        if queue is None:
            output = self.module(*cell.inputs)
        else:
            self._deferral.queue = queue
            with self._deferral:  # left before more is done: every access to a tensor passes it
                output = self.module(*cell.inputs)
        if self._spec is None:
            self._finish(cell, output)
        else:
            self._hand_on(cell, output, self._spec)

    def _backward(self, cell: Cell) -> None:
        edge, dy, queue = cell.edge, cell.dy, cell.queue
        assert edge is not None
        assert dy is not None
        if queue is None:
            run_backward(edge, dy)
        else:
            self._deferral.queue = queue
            with self._deferral:
                run_backward(edge, dy)
        x = cell.inputs[0]
        if self.stage > 0:
            dx = x.grad
            cell.dx = torch.zeros_like(x) if dx is None else dx
            x.grad = None
        cell.inputs, cell.edge, cell.dy = (), None, None

    def _hand_on(self, cell: Cell, output: Tensor, spec: Spec) -> None:
        if output.shape != spec.shape or output.dtype is not spec.dtype:
            raise ShapeError(
                f"stage {self.stage}: its output is {Spec.of(output)}, was {spec} in the first "
                "step; all microbatches must have one shape"
            )
        # what is small stays until B: cheaper than to hold its graph without it
        cell.edge = output if output.nbytes <= SMALL else gradient_edge(output)
        cell.output = output.detach()
        if self.stage > 0 and output.data_ptr() == cell.inputs[0].data_ptr():
            cell.output = cell.output.clone()  # its buffer is freed before this message has left

    def _finish(self, cell: Cell, output: Tensor) -> None:
        assert self._loss is not None
        assert cell.target is not None
        loss = self._loss(output, cell.target)
        seed = self._seeds.get(loss.dtype)
        if seed is None:
            seed = self._seeds[loss.dtype] = self._seed.to(loss.dtype)
        cell.edge, cell.dy = loss, seed
        cell.loss, cell.target = loss.detach(), None
        if self.keep_outputs:
            cell.output = output.detach()


def _weight(cell: Cell) -> None:
    assert cell.queue is not None
    cell.queue.run()


def _within(context: AbstractContextManager[object], run: Run) -> Run:
    """``run`` inside of ``context``, entered again and again."""
    if isinstance(context, nullcontext):
        return run

    def inside(cell: Cell) -> None:
        with context:
            run(cell)

    return inside
