"""B and W apart against BW in one: time, memory and block forwards, ours and torch's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import _backward
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from pipeloom.runtime import Cell, Memory, Spec, StageInterface, StageRunner
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue

from ..overhead.priority import before_others

ROWS, BLOCKS = 512, 4


class Block(nn.Module):
    """A residual feed-forward block; ``calls`` counts its forwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


class Blocks(nn.Module):
    def __init__(self, width: int, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(BLOCKS))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x

    @property
    def calls(self) -> int:
        return sum(block.calls for block in self.blocks)  # type: ignore[misc]


class Split(Protocol):
    """One stage under a runtime."""

    def forward(self, split: bool) -> None: ...

    def backward(self, split: bool) -> None:
        """B, or BW."""
        ...

    def weight(self) -> None: ...


class Ours:
    """A runner of ours, with a batch of inputs like ``x``."""

    def __init__(
        self, module: nn.Module, x: Tensor, kind: Callable[..., StageRunner] = StageRunner
    ) -> None:
        memory, interface = Memory(), StageInterface.one(Spec(tuple(x.shape), x.dtype))
        seed = torch.ones((), device=x.device)
        self._runner = kind(1, module, memory=memory, last=False, loss=None, seed=seed)
        self._cells = {False: Cell(None, interface), True: Cell(WeightQueue(memory), interface)}
        self._x, self._dy = x, torch.randn_like(x)

    def forward(self, split: bool) -> None:
        cell = self._cells[split]
        cell.inputs = (self._x.detach().requires_grad_(),)
        self._runner.forward(cell)
        cell.output, cell.dy = (), (self._dy,)

    def backward(self, split: bool) -> None:
        self._runner.backward(self._cells[split])
        self._cells[split].dx = ()  # sent

    def weight(self) -> None:
        self._runner.weight(self._cells[True])


class Torchs:
    """The functions that stages of torch.distributed.pipelining call."""

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self._module, self._x, self._dy = module, x, torch.randn_like(x)

    def forward(self, split: bool) -> None:
        self._input = self._x.detach().requires_grad_()
        self._output: Tensor | None = self._module(self._input)

    def backward(self, split: bool) -> None:
        output, self._output = self._output, None
        assert output is not None
        if not split:
            _backward.stage_backward(output, self._dy, [self._input])
            self._input.grad = None  # sent
            return
        parameters = self._module.parameters()
        dy: list[Tensor | None] = [self._dy]
        arguments: Any = ([output], dy, [self._input], parameters)
        _, self._groups = _backward.stage_backward_input(*arguments)
        self._input.grad = None

    def weight(self) -> None:
        _backward.stage_backward_weight(self._module.parameters(), self._groups)


RUNTIMES: dict[str, Callable[[nn.Module, Tensor], Split]] = {"ours": Ours, "torch": Torchs}


def apart(width: int, rounds: int) -> dict[str, dict[str, float]]:
    """By runtime: medians, in a process of its own, as the priority is its own."""
    torch.set_num_threads(1)
    before_others()
    torch.manual_seed(0)
    stages = {
        name: make(Blocks(width), torch.randn(ROWS, width)) for name, make in RUNTIMES.items()
    }
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in stages}
    for _ in range(rounds + 2):
        for name, stage in stages.items():
            times[name].append(_round(stage))
    found = {}
    for name, stage in stages.items():
        bw, b, w = map(list, zip(*times[name][2:], strict=True))
        found[name] = {
            "ratio": statistics.median((b + w) / bw for bw, b, w in times[name][2:]),
            "bw_ms": statistics.median(bw) * 1e3,
            "b_ms": statistics.median(b) * 1e3,
            "w_ms": statistics.median(w) * 1e3,
            **_memory(stage),
            "extra_forwards": _extra_forwards(RUNTIMES[name], width),
        }
    return found


def _round(stage: Split) -> tuple[float, float, float]:
    """Seconds of BW, B and W, one after the other, on gradients that are there already."""
    stage.forward(split=False)
    fused = _seconds(lambda: stage.backward(split=False))
    stage.forward(split=True)
    return fused, _seconds(lambda: stage.backward(split=True)), _seconds(stage.weight)


def _seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _memory(stage: Split) -> dict[str, float]:
    """Bytes held before B (what F left) and between B and W, its result sent; above those before
    F."""
    held = _allocated(lambda: stage.forward(split=True))
    freed = _allocated(lambda: stage.backward(split=True))
    stage.weight()
    return {"before_b": held, "between": held + freed}


def _allocated(run: Callable[[], None]) -> int:
    """The bytes that are allocated and not given back within, by the allocator's own account."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    results: Any = recorded.profiler
    events = results.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


def _extra_forwards(make: Callable[[nn.Module, Tensor], Split], width: int) -> float:
    """Under activation checkpointing: how often each block's forward runs again in B and W."""
    module = Blocks(width, checkpointed=True)
    stage = make(module, torch.randn(ROWS, width))
    stage.forward(split=True)
    first = module.calls
    stage.backward(split=True)
    stage.weight()
    return module.calls / first - 1
