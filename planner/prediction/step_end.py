"""The end of a step, after the last backward: averaging of gradients and the optimizer.

The share ``exposed`` of the averaging, and of FSDP's gathering and scattering in each microbatch,
is exposed; or all that takes longer than the computation, if that is more. The optimizer is limited
by memory bandwidth: :data:`STEPPED` bytes per parameter whose state the rank keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..models.run import Sharding, TrainingRun
from ..models.work import Collective, Parameters, step_collectives
from .layer_times import CollectiveTimes, KernelTimes, Traffic

STEPPED = 38.0
"""Bytes per parameter that Adam in mixed precision moves: float32 gradients read for the norm, read
and zeroed (12), master weights and two moments read and written (24), 16-bit weights written (2).
"""


@dataclass(frozen=True, slots=True)
class StepTail:
    """The end of a step on one rank. ``averaging``: of gradients and, with FSDP, weights;
    ``optimizer``: milliseconds."""

    averaging: Traffic
    optimizer: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """One rank's messages to its replicas per step, and the number of parameters that it
    updates."""

    collectives: tuple[Collective, ...]
    updated: float

    @classmethod
    def of(cls, layers: Iterable[Parameters], run: TrainingRun) -> Exchange:
        """The exchanges of a rank with these layers; exchanges of the same kind are merged."""
        held = Counter(layers)
        rounds = run.microbatches if run.sharding is Sharding.FSDP else 1
        moved: dict[Collective, float] = {}
        for parameters, count in held.items():
            for each in step_collectives(parameters, run):
                like = replace(each, bytes=0.0)
                moved[like] = moved.get(like, 0.0) + each.bytes * count * rounds
        together = tuple(replace(each, bytes=size) for each, size in moved.items())
        updated = sum(count * _updated(parameters, run) for parameters, count in held.items())
        return cls(together, updated)

    def end(self, beside: float, kernels: KernelTimes, messages: CollectiveTimes) -> StepTail:
        """The end of the step; ``beside``: the rank's compute time in the step, in milliseconds."""
        time = sum(map(messages.moving, self.collectives))
        exposed = max(kernels.cluster.efficiency.exposed * time, time - beside)
        return StepTail(Traffic(time, exposed), kernels.moving(STEPPED * self.updated))


def _updated(parameters: Parameters, run: TrainingRun) -> float:
    """The number of parameters whose optimizer state the rank has."""
    dense = parameters.dense + parameters.tied
    if run.sharding is Sharding.NONE:
        return dense + parameters.expert
    return dense / run.dense_replicas + parameters.expert / run.expert_replicas
