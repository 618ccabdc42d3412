"""Times and bytes of one stage's ops under each way to run it, interleaved round by round."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeloom.runtime import Cell, Ledger, Spec, StageInterface
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.runtime.graphs.graph_runner import runner_kind
from pipeloom.runtime.rank.heap import keep_pages

from .apart import Ours, Split, Torchs

ROWS, LENGTH, WARMUP = 4, 128, 3


class Block(nn.Module):
    """Causal attention of eight heads and a feed-forward layer, both with residuals."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = [
            t.unflatten(-1, (8, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1)
        ]
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


def blocks(width: int) -> tuple[nn.Module, int]:
    return nn.Sequential(Block(width), Block(width)), width


class LlamaLayer(nn.Module):
    """One decoder layer of Hugging Face's Llama, with the rotation of its positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        config = LlamaConfig(
            hidden_size=width,
            intermediate_size=3 * width,
            num_attention_heads=8,
            num_key_value_heads=4,
        )
        config._attn_implementation = "sdpa"
        self.layer = LlamaDecoderLayer(config, 0)
        cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(LENGTH)[None])
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x, position_embeddings=(self.cos, self.sin))
        return out


STAGES: dict[str, Callable[[], tuple[nn.Module, int]]] = {
    **{f"blocks {width}": partial(blocks, width) for width in (64, 128, 256, 512, 1024, 2048)},
    "llama 256": lambda: (LlamaLayer(256), 256),
}


def ways(module: nn.Module, x: Tensor) -> dict[str, Split]:
    """Each with a copy of the module; eager and compiled are never split."""
    own = partial(copy.deepcopy, module)
    return {
        "eager": Ours(own(), x),
        "interception": Ours(own(), x),
        "aten": Ours(own(), x, runner_kind("aten")),
        "inductor": Ours(own(), x, runner_kind("inductor")),
        "torch's split": Torchs(own(), x),
        "torch.compile": Ours(cast(nn.Module, torch.compile(own())), x),
    }


WHOLE = ("eager", "torch.compile")


def run_ways(name: str, rounds: int, device_name: str) -> dict[str, dict[str, float]]:
    """By way: medians of ``rounds``, in milliseconds."""
    device = torch.device(device_name)
    torch.set_num_threads(1)
    keep_pages(device)  # as a rank's process does, for all ways
    torch.manual_seed(0)
    module, width = STAGES[name]()
    module = module.to(device)
    x = torch.randn(ROWS, LENGTH, width, device=device)
    tried = ways(module, x)
    times: dict[str, list[dict[str, float]]] = {way: [] for way in tried}
    for _ in range(rounds + WARMUP):
        for way, stage in tried.items():
            times[way].append(_round(stage, device, split=way not in WHOLE))
    kept = {way: found[WARMUP:] for way, found in times.items()}
    found = {}
    for way, taken in kept.items():
        medians = {kind: statistics.median(each[kind] for each in taken) for kind in taken[0]}
        medians |= ratios(kept, way) if way not in WHOLE else {}
        found[way] = {**medians, **_held(way, module, x)}
    return found


def ratios(times: Mapping[str, Sequence[Mapping[str, float]]], way: str) -> dict[str, float]:
    """Medians over the rounds of B + W against the BW of eager and of compiled stages in the same
    round: the machine's pace changes from one round to the next."""
    return {
        key: statistics.median(
            one["b_w"] / other["bw"] for one, other in zip(times[way], times[whole], strict=True)
        )
        for key, whole in zip(("of_eager", "of_compiled"), WHOLE, strict=True)
    }


def _round(stage: Split, device: torch.device, *, split: bool) -> dict[str, float]:
    """Milliseconds, on gradients that are there already."""
    found = _taken("f", lambda: stage.forward(False), device)
    found |= _taken("bw", lambda: stage.backward(False), device)
    if split:
        stage.forward(True)
        found |= _taken("b", lambda: stage.backward(True), device)
        found |= _taken("w", stage.weight, device)
        for key in ("", "cpu_"):
            found[f"{key}b_w"] = found[f"{key}b"] + found[f"{key}w"]
    return {kind: 1e3 * seconds for kind, seconds in found.items()}


def _taken(kind: str, run: Callable[[], None], device: torch.device) -> dict[str, float]:
    """Seconds, and as ``cpu_...`` those that the processor says that this thread had."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin, had = time.perf_counter(), time.thread_time()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {kind: time.perf_counter() - begin, f"cpu_{kind}": time.thread_time() - had}


LEDGERED = {"interception": "eager", "aten": "aten", "inductor": "inductor"}


def _held(way: str, module: nn.Module, x: Tensor) -> dict[str, int]:
    """Bytes that the ledger counts before B and between B and W."""
    if way not in LEDGERED:
        return {}
    own, memory = copy.deepcopy(module), Ledger()
    memory.start([own])
    kind = runner_kind(LEDGERED[way])  # type: ignore[arg-type]
    runner = kind(
        1, own, memory=memory, last=False, loss=None, seed=torch.ones((), device=x.device)
    )
    cell = Cell(WeightQueue(memory), StageInterface.one(Spec(tuple(x.shape), x.dtype)))
    cell.inputs = (x.detach().requires_grad_(),)
    runner.forward(cell)
    before, cell.output, cell.dy = memory.live, (), (torch.randn_like(x),)
    runner.backward(cell)
    between = memory.live
    runner.weight(cell)
    return {"before_b": before, "between": between}
