"""Which links the parts of a model would need between devices: bytes against computation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeloom.ir.model.ops import OpKind

from ..clusters.cluster import LINKS
from .layers import work_of
from .model import Model
from .run import Sharding, TrainingRun
from .states import step_collectives
from .totals import alone
from .work import Collective, Group, LayerWork, WorkKind

NODE = 8
"""Devices among which tensor or expert parallelism is looked at."""
EXPOSED = 0.1
"""The part of computation's time that communication may take where it is waited for."""


@dataclass(frozen=True, slots=True)
class LinkNeed:
    """``bytes`` that leave a device while it computes for ``compute_ms``, and the bandwidth in one
    direction with which they take as long (``hidden``), or a tenth where they are waited for.
    """

    name: str
    devices: int
    bytes: float
    compute_ms: float
    hidden: bool

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes / (self.compute_ms * (1 if self.hidden else EXPOSED)) / 1e6

    @property
    def link(self) -> str | None:
        """The slowest link among the presets that has it, or several; None: none has."""
        rates = {name: link.gigabytes_per_second for name, link in LINKS.items()}
        enough = [rate for rate in rates.values() if rate >= self.gigabytes_per_second]
        if not enough:
            return None
        return ", ".join(name for name, rate in rates.items() if rate == min(enough))

    def to_dict(self) -> dict[str, Any]:
        more = {"gigabytes_per_second": self.gigabytes_per_second, "link": self.link}
        return asdict(self) | more


def link_needs(model: Model, run: TrainingRun, devices: int, teraflops: float) -> list[LinkNeed]:
    """The bytes that each way to use ``devices`` of so many FLOP/s sends, for a microbatch on each.

    Pipeline: an activation forward and a gradient back at each cut. Tensor and expert parallel: in
    each layer, and waited for. FSDP: each layer's weights twice and gradients once.
    """
    one = alone(run)
    layer = _decoder(model, one)
    time = sum(layer.flops(op) for op in OpKind) / (teraflops * 1e9)
    return [*_needs(model, one, devices, layer, time)]


def _needs(
    model: Model, one: TrainingRun, devices: int, layer: LayerWork, time: float
) -> Iterator[LinkNeed]:
    stages = min(devices, one.layers)
    if stages > 1:
        each = one.layers / stages
        yield LinkNeed("pipeline", stages, layer.message_bytes, each * time, hidden=True)
    tensor = next(n for n in (NODE, 4, 2, 1) if model.heads % n == model.kv_heads % n == 0)
    if tensor > 1 and one.seq % tensor == 0:
        run = replace(one, gpus=tensor, tp=tensor, etp=tensor, sequence_parallel=True)
        sent = _sent(_decoder(model, run), Group.TP, Group.ETP)
        yield LinkNeed("tensor", tensor, sent, time / tensor, hidden=False)
    if model.experts is not None and model.experts.count % NODE == 0:
        run = replace(one, gpus=NODE, dp=NODE, ep=NODE)
        sent = _sent(_decoder(model, run), Group.EP)
        yield LinkNeed("expert", NODE, sent, time, hidden=False)
    if devices > 1:
        run = replace(one, gpus=devices, dp=devices, sharding=Sharding.FSDP)
        collectives = step_collectives(layer.parameters, run)
        sent = sum(collective.wire_bytes for collective in collectives)
        yield LinkNeed("fsdp", devices, sent, time, hidden=True)


def _decoder(model: Model, run: TrainingRun) -> LayerWork:
    """The last decoder layer: one with experts, where there are any."""
    layers = work_of(model, run).layers
    return [x for x in layers if x.kind in (WorkKind.DENSE, WorkKind.MOE)][-1]


def _sent(layer: LayerWork, *groups: Group) -> float:
    collectives = (kernel for kernel in layer.kernels if isinstance(kernel, Collective))
    return sum(each.wire_bytes for each in collectives if each.group in groups)
