"""A step in a bare loop: the same ops, loss and messages over Gloo, without a runtime.

Each instruction of the program is one function call. Nothing is counted, timed or checked, and
autograd runs only for the loss. No runtime over Gloo can be faster on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeloom import ir
from pipeloom.ir import OpKind

from .sleeping import ROWS, WIDTH, input_gradient, loss
from .traced import added, weight_gradient

Call = Callable[[], object]
_X, _DY = ir.TensorKind.X, ir.TensorKind.DY


class BareRank:
    """Runs this rank's part of ``program``. Each op takes ``seconds``, a BW twice as long."""

    def __init__(self, program: ir.Program, seconds: float) -> None:
        stages, rows = program.schedule.problem.stages, program.instructions
        self._seconds, self._last, self._x = seconds, stages - 1, _empty()
        self._group: Any = dist.new_group(backend="gloo")
        sent = [i.tensor for row in rows for i in row if isinstance(i, ir.Send)]
        self._tags = {tensor: tag for tag, tensor in enumerate(sent)}
        self._weights = [torch.zeros(WIDTH) for _ in range(stages)]
        self._gradients = [torch.zeros(WIDTH) for _ in range(stages)]
        self._tensors: dict[ir.Tensor, Tensor] = {}
        self._losses: dict[int, tuple[Tensor, Tensor]] = {}
        self._waiting: dict[tuple[int, int], Tensor] = {}
        self._works: dict[tuple[type, ir.Tensor], dist.Work] = {}
        calls = map(self._call, rows[dist.get_rank()])
        self._calls = [call for call in calls if call is not None]

    def step(self) -> None:
        for call in self._calls:
            call()

    def _call(self, instruction: ir.Instruction) -> Call | None:
        match instruction:
            case ir.Compute(op=op):
                return partial(self._compute, op.kind, op.stage, op.microbatch)
            case ir.Send(tensor=tensor, target=peer):
                return partial(self._send, tensor, peer, self._tags[tensor])
            case ir.Receive(tensor=tensor, source=peer):
                return partial(self._receive, tensor, _empty(), peer, self._tags[tensor])
            case ir.WaitSend(tensor=tensor):
                return partial(self._wait, (ir.Send, tensor))
            case ir.WaitReceive(tensor=tensor):
                return partial(self._wait, (ir.Receive, tensor))
        return None

    def _compute(self, kind: OpKind, stage: int, j: int) -> None:
        tensors, seconds = self._tensors, self._seconds
        if kind is OpKind.F:
            x = tensors.get(ir.Tensor(_X, stage, j), self._x)
            y = tensors[ir.Tensor(_X, stage + 1, j)] = added(x, self._weights[stage], seconds)
            if stage == self._last:
                self._losses[j] = y.requires_grad_(), loss(y, x)
            return
        if kind is not OpKind.W:
            dy = self._start(j) if stage == self._last else tensors[ir.Tensor(_DY, stage, j)]
            dx = input_gradient(dy, seconds)
            tensors[ir.Tensor(_DY, stage - 1, j)] = self._waiting[stage, j] = dx
        if kind is not OpKind.B:
            self._gradients[stage] += weight_gradient(self._waiting.pop((stage, j)), seconds)

    def _start(self, j: int) -> Tensor:
        """The gradient of the loss of microbatch ``j`` with which B of the last stage starts."""
        y, found = self._losses.pop(j)
        found.backward()  # type: ignore[no-untyped-call]
        assert y.grad is not None
        return y.grad

    def _send(self, tensor: ir.Tensor, peer: int, tag: int) -> None:
        self._works[ir.Send, tensor] = self._group.send([self._tensors[tensor]], peer, tag)

    def _receive(self, tensor: ir.Tensor, buffer: Tensor, peer: int, tag: int) -> None:
        self._tensors[tensor] = buffer
        self._works[ir.Receive, tensor] = self._group.recv([buffer], peer, tag)

    def _wait(self, key: tuple[type, ir.Tensor]) -> None:
        self._works.pop(key).wait()


def _empty() -> Tensor:
    return torch.zeros(ROWS, WIDTH)
