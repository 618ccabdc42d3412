"""``arithmetic``: a model's parameters, FLOPs and bytes, as sums over its layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.removed import telling_removed
from pipeloom.ir.units import amount, counted
from pipeloom.report.text_table import table

from .layers import work_of
from .model import Model
from .reading import ModelLike, read_model
from .run import Sharding, TrainingRun, usual
from .work import (
    LayerWork,
    ModelWork,
    States,
    WorkKind,
    states_of,
)


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


DEVICE_MEMORY = 80e9
"""Bytes; of an A100 with 80 GB."""
_OPS = (OpKind.F, OpKind.R, OpKind.B, OpKind.W)


@dataclass(frozen=True)
class Arithmetic:
    """A model's figures in a run: bytes, FLOPs, layer by layer and stage by stage.

    ``parameters``: of the whole model; ``active``: those that a token uses. ``totals``: bytes of
    the whole model and one microbatch. ``work``: of one rank and microbatch.
    """

    model: Model
    run: TrainingRun
    parameters: int
    active: int
    totals: Totals
    work: ModelWork
    device_memory: float

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
            "totals": self.totals.to_dict(),
            "layers": [_layer_dict(layer, n) for layer, n in self._kinds()],
            "stages": list(map(self._stage_dict, self.work.stages, self.states())),
        }

    def __str__(self) -> str:
        parts = [self._title(), self._totals(), self._layers()]
        if self.run.gpus > 1:
            parts.append(self._stages())
        return "\n\n".join(parts)

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
        found = self.totals
        rows = [[key, amount(value)] for key, value in found.to_dict().items() if key != "devices"]
        devices = counted(found.devices, "device")
        return (
            f"{table(['bytes', 'of all layers'], rows)}\n{devices} of {amount(self.device_memory)}"
        )

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

    def _stage_dict(self, stage: tuple[LayerWork, ...], states: States) -> dict[str, Any]:
        held = {"m_b": _held(stage), "m_w": sum(layer.m_w for layer in stage)}
        return {"layers": len(stage)} | asdict(states) | held


@telling_removed
def arithmetic(
    model: ModelLike,
    *,
    device_memory: float = DEVICE_MEMORY,
    **run: Any,
) -> Arithmetic:
    """Parameters, FLOPs, bytes held and moved of a model in a run, by layer.

    ``model``: a preset's name, a ``config.json``, its folder or its mapping. ``run``: keys of
    :class:`.models.run.TrainingRun`; gradients are in the run's precision unless ``gradients`` says
    otherwise. ``device_memory``: bytes of a device. Raises InputError, with a line for each fault.
    """
    if not 0 < device_memory < math.inf:
        raise InputError(f"device_memory: expected a number > 0, got {device_memory!r}")
    found = read_model(model)
    checked = TrainingRun.of(usual(found) | dict(run), found)
    if run.get("gradients") is None:
        checked = replace(checked, gradients=checked.precision)
    return Arithmetic(
        found,
        checked,
        parameter_count(found, checked),
        active_count(found, checked),
        totals_of(found, checked, device_memory),
        work_of(found, checked),
        device_memory,
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
