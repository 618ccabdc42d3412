"""Bytes of a whole model: the sums over its layers, and rules of thumb beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from .layers import work_of
from .model import Model
from .run import FULL, AttentionKernel, Sharding, TrainingRun
from .states import states_of
from .work import WorkKind

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
    return replace(
        run,
        gpus=1,
        tp=1,
        pp=1,
        vp=1,
        dp=1,
        cp=1,
        ep=1,
        etp=1,
        global_batch=run.micro_batch,
        sequence_parallel=False,
        sharding=Sharding.NONE,
        layers_per_stage=None,
    )
