"""Measures the links on each rank of the ring, and trains with each scheme.

The last scheme is torch's ``fully_shard`` with the same model, stages, microbatches and op times.
Rank r runs microbatches r, P + r, ... Before the forward and the backward of a stage, torch
all-gathers its weights; after the backward, it reduce-scatters their gradients. On a CPU, torch
waits for each collective, so nothing overlaps.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from examples.gpt import GPT
from pipeloom import Pipeline
from pipeloom.ir import Link, Program

from ..clocks import before_others
from .network import INTERFACE, address, enter, own, router, sent
from .ring import STEPS, WARMUP

PORT = 29500  # always free, as the namespaces are new
TIMEOUT = timedelta(seconds=120)  # for each message
PROBE_BYTES, PROBES = 400_000, 9


@dataclass(frozen=True, slots=True)
class RankRun:
    """The measurements of one rank while it trains with one scheme.

    ``ends``: the end of each step in seconds, on a clock that all ranks share. ``losses``: for each
    step, the losses of this rank's microbatches. ``sent``: bytes per step that its router sent over
    each link, including forwarded messages and headers.
    """

    ends: list[float]
    losses: list[list[float]]
    sent: dict[str, float]


def on_ring(maker: int, ask: Callable[[int], list[object]]) -> list[object]:
    """Run by each launched rank: enter its namespace, connect the ranks, and return ``ask(maker)``.

    ``maker``: the process id in the namespaces' names.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    before_others()
    dist.destroy_process_group()
    gc.collect()  # ends threads that are connected to the network outside
    enter(own(maker, rank))
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address(0), PORT, ranks, is_master=rank == 0, timeout=TIMEOUT
    )
    dist.init_process_group("gloo", None, TIMEOUT, world_size=ranks, rank=rank, store=store)
    return ask(maker)


def probe(maker: int) -> list[object]:
    """Measure the link between this rank and the next one in the ring by ping-pong.

    Returns a list with one tuple: (rank, next rank, link).
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found: list[object] = []
    for low in range(ranks):
        high = (low + 1) % ranks
        dist.barrier()
        if rank in (low, high):
            peer = high if rank == low else low
            small, large = (_ping_pong(peer, size, first=rank == low) for size in (8, PROBE_BYTES))
            if rank == low:
                found.append((low, high, Link(small, PROBE_BYTES / ((large - small) * 1e6))))
    dist.barrier()
    return found


def _ping_pong(peer: int, size: int, *, first: bool) -> float:
    """Half of the median round-trip time of ``size`` bytes, in milliseconds. ``first``: whether
    this rank sends first."""
    message, times = torch.zeros(size, dtype=torch.uint8), []
    for _ in range(PROBES + WARMUP):
        begin = time.perf_counter()
        for sends in (first, not first):
            (dist.send if sends else dist.recv)(message, peer)
        times.append(time.perf_counter() - begin)
    return 1e3 / 2 * median(times[WARMUP:])


def train(
    model: GPT, times: tuple[float, float], programs: Sequence[Program], maker: int
) -> list[object]:
    """Train with each program and then with ``fully_shard``; returns a :class:`RankRun` for each.

    ``times``: the minimum milliseconds of F and of BW of a stage with ``fully_shard``.
    """
    found = [_planned(model, program, maker) for program in programs]
    return [*found, _sharded(model, times, programs[0].schedule.problem.microbatches, maker)]


def _planned(model: GPT, program: Program, maker: int) -> RankRun:
    """Train with ``program``. Each op takes at least its planned time."""
    pipeline = Pipeline.from_source(program, model, memory=False, pace=True, timeout=120.0)
    batches = [model.batch(i, pipeline.microbatches) for i in range(STEPS)]

    def step(i: int) -> list[float]:
        losses: list[Tensor] = []
        inputs, target = batches[i]
        pipeline.step(inputs, target=target, losses=losses, return_outputs=False)
        return [loss.item() for loss in losses]

    result = _run(step, pipeline.barrier, router(maker, dist.get_rank()))
    pipeline.close()
    return result


def _sharded(model: GPT, times: tuple[float, float], microbatches: int, maker: int) -> RankRun:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stages = [Paced(make(), *times) for make in model.stages(ranks)]
    whole = nn.Sequential(*stages)
    mesh = init_device_mesh("cpu", (ranks,))
    for module in (*stages, whole):
        fully_shard(module, mesh=mesh)
    optimizer = model.optimizer(whole.parameters())
    mine = range(rank, microbatches, ranks)
    batches = [model.batch(i, microbatches) for i in range(STEPS)]

    def step(i: int) -> Iterator[float]:
        inputs, targets = batches[i]
        for j in mine:
            stages[-1].finish = partial(model.loss, target=targets[j])
            loss = whole(inputs[j])
            (loss / len(mine)).backward()
            yield loss.item()
        optimizer.step()
        optimizer.zero_grad()

    return _run(step, dist.barrier, router(maker, rank))


def _run(
    step: Callable[[int], list[float] | Iterator[float]],
    barrier: Callable[[], object],
    beside: str,
) -> RankRun:
    """Run ``STEPS`` steps one right after the other.

    Ranks do not wait for each other between steps. There is a barrier only before the first and
    after the last step, when bytes are counted. ``beside``: the namespace of this rank's router.
    """
    barrier()
    before, ends, losses = sent(beside), [], []
    for i in range(STEPS):
        losses.append(list(step(i)))
        ends.append(time.perf_counter())
    barrier()
    after = sent(beside)
    return RankRun(ends, losses, {end: (after[end] - before[end]) / STEPS for end in after})


class Paced(nn.Module):
    """A stage whose forward and backward take at least the given milliseconds, by sleeping.

    The backward starts when the gradient of the output is available, and ends when that of the
    input is. As the input of the first stage has no gradient, its backward ends with the gradient
    of its first module's output. ``finish``: the last part of the forward, such as the loss.
    """

    finish: Callable[[Tensor], Tensor] | None = None

    def __init__(self, stage: nn.Module, forward: float, backward: float) -> None:
        super().__init__()
        self.stage = stage
        self._forward, self._backward = forward / 1e3, backward / 1e3
        self._began = 0.0
        next(stage.children()).register_forward_hook(self._mark_first)

    def forward(self, x: Tensor) -> Tensor:
        end = time.perf_counter() + self._forward
        out = self.stage(_marked(x, self._sleep) if x.requires_grad else x)
        out = _marked(out if self.finish is None else self.finish(out), self._begin)
        time.sleep(max(0.0, end - time.perf_counter()))
        return out

    def _mark_first(self, module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return out if inputs[0].requires_grad else _marked(out, self._sleep)

    def _begin(self, gradient: Tensor) -> None:
        self._began = time.perf_counter()

    def _sleep(self, gradient: Tensor) -> None:
        time.sleep(max(0.0, self._began + self._backward - time.perf_counter()))


def _marked(x: Tensor, call: Callable[[Tensor], None]) -> Tensor:
    """Return a view of ``x``; ``call`` is called when its gradient is computed."""
    marked = x.view_as(x)
    marked.register_hook(call)  # type: ignore[no-untyped-call]
    return marked
