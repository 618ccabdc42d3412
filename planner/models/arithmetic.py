"""``arithmetic``: what a model takes, by sums over its layers, before any cluster is known.

Which links its parts would need between devices: bytes against computation.

Bytes of a whole model: the sums over its layers, and rules of thumb beside them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.units import amount, counted
from pipeloom.report.text_table import table

from ..clusters.cluster import LINKS
from .layers import work_of
from .model import Model
from .reading import ModelLike, read_model
from .run import FULL, AttentionKernel, Sharding, TrainingRun, usual
from .work import (
    Collective,
    Group,
    LayerWork,
    ModelWork,
    States,
    WorkKind,
    states_of,
    step_collectives,
)

ADAM_BYTES = (2, 2, 12)
"""A parameter's weights, gradients and optimizer, with Adam in mixed precision (Rajbhandari et al.,
2020, section 3.1)."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes of a model and of one microbatch of it, divided over no ranks.

    ``devices``: as many as hold all of it, of a given memory.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    devices: int

    @property
    def all(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations

    def to_dict(self) -> dict[str, float]:
        return asdict(self) | {"all": self.all}

    @classmethod
    def of(cls, states: Sequence[float], activations: float, device_memory: float) -> Totals:
        """``states``: parameters, gradients, optimizer."""
        parameters, gradients, optimizer = states
        devices = math.ceil((sum(states) + activations) / device_memory)
        return cls(parameters, gradients, optimizer, activations, devices)


def totals_of(model: Model, run: TrainingRun, device_memory: float) -> Totals:
    """Summed over layers: all on one rank, tied parameters once."""
    one = alone(run)
    layers = work_of(model, one).layers
    states = [states_of(layer.parameters, one) for layer in layers]
    parts = (
        sum(each.weights for each in states),
        sum(each.gradients for each in states),
        sum(each.optimizer for each in states),
    )
    return Totals.of(parts, sum(layer.m_b for layer in layers), device_memory)


def totals_by_rule(model: Model, run: TrainingRun, device_memory: float) -> Totals:
    """Sums as one does them by hand: 2, 2 and 12 bytes for each parameter of the model's round
    number, and for each layer what a GPT of the same width with dropout holds, ends aside: s b h
    (34 + 5 a s / h) bytes for s positions, b sequences, width h and a heads; with full
    recomputation 2 s b h (Korthikanti et al., 2022, equations 1 and 2, table 2).

    Without the attention matrix where it is recomputed, or a kernel does not keep it.
    """
    count = model.nominal_parameters or parameter_count(model, run)
    states = [each * count for each in ADAM_BYTES]
    kept = run.attention is AttentionKernel.UNFUSED and not run.recompute
    pairs = 5 * model.heads * run.seq / model.hidden if kept else 0.0
    each = 2.0 if run.recompute == FULL else 34 + pairs
    layer = run.seq * run.micro_batch * model.hidden * each
    return Totals.of(states, run.layers * layer, device_memory)


def parameter_count(model: Model, run: TrainingRun) -> int:
    """Numbers of the layers that the run has, multi-token prediction aside, as it is counted."""
    layers = work_of(model, alone(run)).layers
    return sum(x.parameters.total for x in layers if x.kind is not WorkKind.MTP)


def active_count(model: Model, run: TrainingRun) -> int:
    """The parameters that a token uses: of experts the chosen."""
    if model.experts is None:
        return parameter_count(model, run)
    layers = work_of(model, alone(run)).layers
    expert = sum(layer.parameters.expert for layer in layers if layer.kind is WorkKind.MOE)
    idle = expert * (1 - model.experts.chosen / model.experts.count)
    return parameter_count(model, run) - round(idle)


def alone(run: TrainingRun) -> TrainingRun:
    """The same run, one microbatch of it, on one rank."""
    degrees: dict[str, Any] = dict.fromkeys(("gpus", "tp", "pp", "vp", "dp", "cp", "ep", "etp"), 1)
    return replace(
        run,
        **degrees,
        global_batch=run.micro_batch,
        sequence_parallel=False,
        sharding=Sharding.NONE,
        layers_per_stage=None,
    )


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


DEVICE_MEMORY, TERAFLOPS = 80e9, 312.0
"""Of an A100 with 80 GB, in 16 bits."""
_OPS = (OpKind.F, OpKind.R, OpKind.B, OpKind.W)


@dataclass(frozen=True)
class Arithmetic:
    """A model's figures in a run: bytes, FLOPs, layer by layer and stage by stage.

    ``parameters``: of the whole model, ``active`` those that a token uses. ``summed``: bytes by
    summing over layers, ``by_rule``: as one does it by hand. ``work``: of one rank and microbatch.
    ``links``: what would be sent if as many devices as ``by_rule`` needs shared the model.
    """

    model: Model
    run: TrainingRun
    parameters: int
    active: int
    summed: Totals
    by_rule: Totals
    work: ModelWork
    links: tuple[LinkNeed, ...]
    device_memory: float
    teraflops: float

    @property
    def most_stages(self) -> int:
        """Stages of at least one decoder layer each."""
        return self.run.layers

    def states(self) -> list[States]:
        """Bytes of weights, gradients and optimizer on one rank of each stage."""
        return [_states(stage, self.run) for stage in self.work.stages]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``predict --json`` prints without a cluster."""
        return {
            "model": self.model.name,
            "parameters": self.parameters,
            "active_parameters": self.active,
            "most_stages": self.most_stages,
            "device_memory": self.device_memory,
            "summed": self.summed.to_dict(),
            "by_rule": self.by_rule.to_dict(),
            "layers": [_layer_dict(layer, n) for layer, n in self._kinds()],
            "stages": list(map(self._stage_dict, self.work.stages, self.states())),
            "links": [need.to_dict() for need in self.links],
        }

    def __str__(self) -> str:
        parts = [self._title(), self._totals(), self._layers()]
        if self.run.gpus > 1:
            parts.append(self._stages())
        return "\n\n".join([*parts, self._links()])

    def _kinds(self) -> list[tuple[LayerWork, int]]:
        """Each kind of layer, and how many there are."""
        return list(Counter(self.work.layers).items())

    def _title(self) -> str:
        active = f", {amount(self.active)} of them for a token" if self.model.experts else ""
        batch = f"{counted(self.run.micro_batch, 'sequence')} of {self.run.seq} tokens"
        return (
            f"{self.model.name}: {self.parameters} parameters{active}; "
            f"{counted(self.run.layers, 'layer')}, so at most as many stages\n"
            f"a microbatch is {batch}, in {self.run.precision}"
        )

    def _totals(self) -> str:
        names = {
            "parameters": "parameters, 2 bytes each",
            "gradients": "gradients, 2",
            "optimizer": "Adam in float32, 12",
            "activations": f"activations of a microbatch, {self._rule()}",
            "all": "all",
            "devices": f"devices of {amount(self.device_memory)}",
        }
        summed, rule = self.summed.to_dict(), self.by_rule.to_dict()
        rows = [
            [key, *(_cell(key, values[key]) for values in (rule, summed)), words]
            for key, words in names.items()
        ]
        return table(["bytes", "by rule", "by layers", "the rule"], rows)

    def _rule(self) -> str:
        if self.run.recompute == FULL:
            return "2 s b h a layer"
        pairs = self.by_rule.activations > 34.5 * self._numbers()
        return "s b h (34 + 5 a s / h) a layer" if pairs else "34 s b h a layer"

    def _numbers(self) -> float:
        """s b h of all layers."""
        return self.run.layers * self.run.seq * self.run.micro_batch * self.model.hidden

    def _layers(self) -> str:
        header = ["layer", "of", "parameters", *(f"{op.name} FLOPs" for op in _OPS)]
        header += ["bytes moved", "M_B", "M_W", "back in R", "sent on"]
        rows = [[layer.name, str(n), *map(amount, _figures(layer))] for layer, n in self._kinds()]
        return "on one rank, for a microbatch\n" + table(header, rows)

    def _stages(self) -> str:
        header = ["stage", "layers", "weights", "gradients", "optimizer", "gathered", "M_B"]
        rows = [
            [str(index), str(len(stage)), *map(amount, [*asdict(states).values(), _held(stage)])]
            for index, (stage, states) in enumerate(
                zip(self.work.stages, self.states(), strict=True)
            )
        ]
        return "bytes on one rank of each stage\n" + table(header, rows)

    def _links(self) -> str:
        header = [
            "parallel",
            "devices",
            "sent",
            "while computing",
            "may take",
            "GB/s",
            "slowest link",
        ]
        rows = [
            [
                need.name,
                str(need.devices),
                amount(need.bytes),
                need.compute_ms,
                "all of it" if need.hidden else "a tenth",
                f"{need.gigabytes_per_second:.4g}",
                need.link or "none",
            ]
            for need in self.links
        ]
        rate = f"at {self.teraflops:g} TFLOP/s"
        if not rows:
            return "one device holds all of it: nothing is sent"
        return f"links for a microbatch on each, computing {rate}\n{table(header, rows)}"

    def _stage_dict(self, stage: tuple[LayerWork, ...], states: States) -> dict[str, Any]:
        held = {"m_b": _held(stage), "m_w": sum(layer.m_w for layer in stage)}
        return {"layers": len(stage)} | asdict(states) | held


def arithmetic(
    model: ModelLike,
    *,
    device_memory: float = DEVICE_MEMORY,
    teraflops: float = TERAFLOPS,
    **run: Any,
) -> Arithmetic:
    """Parameters, FLOPs, bytes held and moved of a model in a run, by layer.

    ``model``: a preset's name, a ``config.json``, its folder or its mapping. ``run``: keys of
    :class:`.models.run.TrainingRun`; gradients are in the run's precision unless ``gradients`` says
    otherwise. ``device_memory`` in bytes and ``teraflops`` say how many devices hold the model, and
    which links would do. Raises InputError, with a line for each fault.
    """
    for name, value in (("device_memory", device_memory), ("teraflops", teraflops)):
        if not 0 < value < float("inf"):
            raise InputError(f"{name}: expected a number > 0, got {value!r}")
    found = read_model(model)
    checked = TrainingRun.of(usual(found) | dict(run), found)
    if run.get("gradients") is None:
        checked = replace(checked, gradients=checked.precision)
    by_rule = totals_by_rule(found, checked, device_memory)
    return Arithmetic(
        found,
        checked,
        parameter_count(found, checked),
        active_count(found, checked),
        totals_of(found, checked, device_memory),
        by_rule,
        work_of(found, checked),
        tuple(link_needs(found, checked, by_rule.devices, teraflops)),
        device_memory,
        teraflops,
    )


def _states(stage: tuple[LayerWork, ...], run: TrainingRun) -> States:
    states = [states_of(layer.parameters, run) for layer in stage]
    return sum(states[1:], states[0])


def _held(stage: tuple[LayerWork, ...]) -> float:
    return sum(layer.m_b for layer in stage)


def _figures(layer: LayerWork) -> Iterator[float]:
    yield layer.parameters.held
    yield from (layer.flops(op) for op in _OPS)
    yield sum(layer.bytes_moved(op) for op in _OPS)
    yield from (layer.m_b, layer.m_w, layer.m_r, layer.message_bytes)


def _layer_dict(layer: LayerWork, count: int) -> dict[str, Any]:
    return {
        "layer": layer.name,
        "count": count,
        "parameters": asdict(layer.parameters),
        "flops": {op.name: layer.flops(op) for op in _OPS},
        "bytes_moved": {op.name: layer.bytes_moved(op) for op in _OPS},
        "m_b": layer.m_b,
        "m_w": layer.m_w,
        "m_r": layer.m_r,
        "message_bytes": layer.message_bytes,
    }


def _cell(key: str, value: float) -> str:
    return str(value) if key == "devices" else amount(value)
