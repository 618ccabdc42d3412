"""Modules that defer their weight gradients themselves, until ``backward_dw`` is called.

TransformerEngine's and Megatron's modules do so with ``delay_wgrad_compute``. In each backward
call, such a module appends to a queue what its weight gradients need. Each call of
``backward_dw()`` processes the oldest entry and leaves the gradients in ``.grad``. If the module
has ``need_backward_dw()``, it returns whether the module defers at all. The ``backward_dw`` of a
container calls those of its submodules. The runtime calls each innermost module directly, as many
times as the microbatch's F called it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind

from ..measure.activation_ledger import Ledger, saved_by
from ..measure.memory import Held, Memory
from ..tensors.trees import tensors
from .deferred_linear import add

if TYPE_CHECKING:
    from .stage_runner import Cell, Runs, StageRunner

FUSED = ("fuse_wgrad_accumulation", "_accumulate_into_main_grad")
"""Attributes that are true in modules that add to ``main_grad`` instead of ``grad``."""


def delayed_modules(stage: int, module: nn.Module) -> list[nn.Module]:
    """Returns a stage's innermost modules that have ``backward_dw`` and need the call.

    Raises InputError for a module that adds its gradients to ``main_grad``, and for a container of
    such modules that also has trainable parameters of its own.
    """
    found = []
    having = {path: part for path, part in module.named_modules() if hasattr(part, "backward_dw")}
    for path, part in having.items():
        wanted = ""
        if any(inner is not part and hasattr(inner, "backward_dw") for inner in part.modules()):
            if any(p.requires_grad for p in part.parameters(recurse=False)):
                wanted = "no parameters of its own beside modules that have it, too"
        elif getattr(part, "need_backward_dw", lambda: True)():
            found.append(part)
            if any(getattr(part, name, False) for name in FUSED):
                wanted = "gradients in grad, got some added to main_grad"
        if wanted:
            raise InputError(f"stages[{stage}]: {path or 'it'} has backward_dw: expected {wanted}")
    return found


def check_order(program: ir.Program, rank: int, stage: int) -> None:
    """Raises InputError if the stage's W's are not in the order of its B's.

    ``backward_dw`` always processes the oldest entry of the module's queue.
    """
    ops = [i.op for i in program.instructions[rank] if isinstance(i, ir.Compute)]
    after = [op for op in ops if op.stage == stage and op.kind in (OpKind.W, OpKind.BW)]
    before = [op for op in ops if op.stage == stage and op.kind in (OpKind.B, OpKind.BW)]
    for b, w in zip(before, after, strict=True):
        if b.microbatch != w.microbatch:
            raise InputError(
                f"program: expected W's of stage {stage} in the order of its B's on rank {rank}, as"
                f" its modules' backward_dw takes the oldest microbatch, got {w} for {b}"
            )


class DelayedCalls:
    """The modules with ``backward_dw`` that a microbatch's F called, once per call."""

    __slots__ = ("_held", "_memory", "modules")

    def __init__(self, memory: Memory) -> None:
        self.modules: list[nn.Module] = []
        self._held: list[Held] = []
        self._memory = memory

    def hold(self, *kept: Tensor) -> None:
        """Counts tensors that an entry keeps until W."""
        self._held.append(self._memory.hold(*kept))

    def run(self) -> set[int]:
        """Computes the deferred gradients; returns the ids of the parameters that got one."""
        found = set[int]().union(*map(_computed, self.modules))
        self.clear()
        return found

    def clear(self) -> None:
        """Forgets the calls and stops counting the memory of their entries."""
        self.modules.clear()
        while self._held:
            self._memory.release(self._held.pop())


@torch.no_grad()
def _computed(module: nn.Module) -> set[int]:
    """Calls ``backward_dw`` and adds the results to the earlier gradients.

    ``backward_dw`` may overwrite ``.grad`` or add to it; both give the same sum here. Returns the
    ids of the parameters that got a gradient.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    before = [p.grad for p in trained]
    for parameter in trained:
        parameter.grad = None
    getattr(module, "backward_dw")()  # noqa: B009
    found = {id(p) for p in trained if p.grad is not None}
    for parameter, kept in zip(trained, before, strict=True):
        gradient, parameter.grad = parameter.grad, kept
        if gradient is not None:
            add(parameter, gradient)
    return found


_under_way: list[DelayedCalls] = []  # the calls of the F that is running; at most one element


def around(modules: Sequence[nn.Module], memory: Memory, runs: Runs, runner: StageRunner) -> Runs:
    """Returns F, B and W for a stage that contains such ``modules``.

    ``runs`` are the stage's F, B and W without them.
    """
    forward, backward, weight = runs
    for module in modules:
        if _called not in module._forward_hooks.values():
            module.register_forward_hook(_called)

    def counted(cell: Cell) -> None:
        if cell.delayed is None:
            cell.delayed = DelayedCalls(memory)
        cell.delayed.clear()
        _under_way.append(cell.delayed)
        try:
            forward(cell)
        finally:
            _under_way.clear()

    def fused(cell: Cell) -> None:
        backward(cell)
        if cell.queue is None and cell.delayed is not None:
            cell.delayed.run()

    def finished(cell: Cell) -> None:
        weight(cell)
        if cell.delayed is not None:
            found = cell.delayed.run()
            if runner.watched is not None:
                runner.watched.weight(found)

    return counted, fused, finished


def _called(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    if not _under_way:
        return
    (calls,) = _under_way
    calls.modules.append(module)
    if not torch.is_grad_enabled():
        return
    if saved_by(Ledger):
        calls.hold(*tensors(inputs))
    for out in tensors((output,)):
        if out.requires_grad:
            out.register_hook(calls.hold)  # type: ignore[no-untyped-call]
