"""Times and memory of the ops of one stage, run in different ways that alternate in each round."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import _backward

from examples.gpt import Block
from pipeloom.runtime import Cell, Ledger, Memory, Spec, StageInterface, StageRunner
from pipeloom.runtime.device import Device
from pipeloom.runtime.executor.skip_connections import Skips
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.runtime.graphs.graph_runner import runner_kind
from pipeloom.runtime.rank.heap import keep_pages

ROWS, LENGTH, HEADS, WARMUP = 4, 128, 8, 3


def blocks(width: int) -> nn.Module:
    return nn.Sequential(Block(width, HEADS), Block(width, HEADS))


class LlamaLayer(nn.Module):
    """One decoder layer of Hugging Face's Llama, with its rotary position embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 3 * width}
        config = LlamaConfig(**sizes, num_attention_heads=HEADS, num_key_value_heads=HEADS // 2)
        config._attn_implementation = "sdpa"
        self.layer = LlamaDecoderLayer(config, 0)
        cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(LENGTH)[None])
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x, position_embeddings=(self.cos, self.sin))
        return out


class Ours:
    """A stage with a runner of this library, and with fixed inputs of the shape of ``x``.

    With ``split``, :meth:`forward` prepares for a separate B, :meth:`backward` runs B, and
    :meth:`weight` runs W. Without it, :meth:`backward` runs BW.
    """

    def __init__(
        self,
        module: nn.Module,
        x: Tensor,
        kind: Callable[..., StageRunner] = StageRunner,
        memory: Memory | None = None,
    ) -> None:
        memory = memory or Memory()
        interface = StageInterface((Spec.of(x),), (True,))
        seed = torch.ones((), device=x.device)
        more = {"last": False, "loss": None, "seed": seed, "skips": Skips((), 2)}
        self._runner = kind(1, module, memory=memory, **more)
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
    """A stage with the functions by which torch.distributed.pipelining runs F, B, W and BW."""

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self._module, self._x, self._dy = module, x, torch.randn_like(x)

    def forward(self, split: bool) -> None:
        self._input = self._x.detach().requires_grad_()
        self._output: Tensor | None = self._module(self._input)

    def backward(self, split: bool) -> None:
        output, self._output = self._output, None
        assert output is not None
        if split:
            dy: list[Tensor | None] = [self._dy]
            arguments: Any = ([output], dy, [self._input], self._module.parameters())
            _, self._groups = _backward.stage_backward_input(*arguments)
        else:
            _backward.stage_backward(output, self._dy, [self._input])
        self._input.grad = None  # sent

    def weight(self) -> None:
        _backward.stage_backward_weight(self._module.parameters(), self._groups)


Split: TypeAlias = Ours | Torchs


WHOLE = {"of_eager": "eager", "of_compiled": "torch.compile"}
"""The ways that run only BW, as values. For each of them, the results of the other ways contain the
ratio (B + W) / BW, where BW is that of this way; the key is the name of this ratio."""
LEDGERED = {"interception": "eager", "aten": "aten", "inductor": "inductor"}
"""Our ways that split the backward, each with its setting ``stages_as``."""


def run_ways(name: str, rounds: int, device_name: str) -> dict[str, dict[str, float]]:
    """Run the stage ``name`` in each way; returns medians over ``rounds``, by way.

    Times are in milliseconds. ``before_b`` and ``between``: the bytes that the memory ledger counts
    before B, and between B and W. ``of_...``: the median over rounds of (B + W) / BW, where all
    three are from the same round, because the speed of the machine changes from round to round.
    """
    device = Device(torch.device(device_name))
    torch.set_num_threads(1)
    keep_pages(device.device)  # as in the process of a rank
    torch.manual_seed(0)
    kind, width = name.split()
    module = (LlamaLayer if kind == "llama" else blocks)(int(width)).to(device.device)
    x = torch.randn(ROWS, LENGTH, int(width), device=device.device)
    own = partial(copy.deepcopy, module)
    ways: dict[str, Split] = {
        "eager": Ours(own(), x),
        **{way: Ours(own(), x, runner_kind(cast(Any, each))) for way, each in LEDGERED.items()},
        "torch's split": Torchs(own(), x),
        "torch.compile": Ours(cast(nn.Module, torch.compile(own())), x),
    }
    rows = [
        {way: _round(stage, device, split=way not in WHOLE.values()) for way, stage in ways.items()}
        for _ in range(rounds + WARMUP)
    ]
    found = {way: _medians(rows[WARMUP:], way) for way in ways}
    for way, stages_as in LEDGERED.items():
        found[way] |= _held(own(), x, stages_as)
    return found


def _medians(rows: Sequence[Mapping[str, Mapping[str, float]]], way: str) -> dict[str, float]:
    found = {key: 1e3 * median(row[way][key] for row in rows) for key in rows[0][way]}
    if "b" in found:
        for key, whole in WHOLE.items():
            found[key] = median((r[way]["b"] + r[way]["w"]) / r[whole]["bw"] for r in rows)
    return found


def _round(stage: Split, device: Device, *, split: bool) -> Mapping[str, float]:
    """The time of BW in seconds, as ``bw``; with ``split`` also those of B and W, as ``b`` and
    ``w``. Gradients are added to existing ones."""
    stage.forward(False)
    found = {"bw": _taken(lambda: stage.backward(False), device)}
    if split:
        stage.forward(True)
        found["b"] = _taken(lambda: stage.backward(True), device)
        found["w"] = _taken(stage.weight, device)
    return found


def _taken(run: Callable[[], None], device: Device) -> float:
    device.synchronize()
    begin = time.perf_counter()
    run()
    device.synchronize()
    return time.perf_counter() - begin


def _held(module: nn.Module, x: Tensor, kind: str) -> dict[str, float]:
    memory = Ledger()
    memory.start([module])
    stage = Ours(module, x, runner_kind(cast(Any, kind)), memory)
    stage.forward(True)
    before = memory.live
    stage.backward(True)
    between = memory.live
    stage.weight()
    return {"before_b": before, "between": between}
