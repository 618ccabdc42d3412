"""The end of a step, after the last backward: gradients are averaged and the optimizer steps.

Of the averaging, and of what FSDP gathers and scatters in each microbatch, ``exposed`` of the time
is waited for, or all that takes longer than the computation beside it, if that is more. The
optimizer waits for memory: :data:`STEPPED` bytes a parameter that the rank keeps the state of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..models.run import Sharding, TrainingRun
from ..models.work import Collective, Parameters, step_collectives
from .layer_times import CollectiveTimes, KernelTimes, Traffic

STEPPED = 38.0
"""Bytes that Adam in mixed precision moves a parameter: float32 gradients read for the norm, read
and zeroed (12), masters and two moments read and written (24), 16-bit weights written (2)."""


@dataclass(frozen=True, slots=True)
class StepTail:
    """The end of a step on one rank. ``averaging``: of its gradients and, with FSDP, weights;
    ``optimizer``: milliseconds."""

    averaging: Traffic
    optimizer: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """One rank's messages to its replicas in a step, and the parameters that it updates."""

    collectives: tuple[Collective, ...]
    updated: float

    @classmethod
    def of(cls, layers: Iterable[Parameters], run: TrainingRun) -> Exchange:
        """The exchanges of a rank with these layers: like exchanges are one of all their bytes."""
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
        """``beside``: milliseconds that the rank computes in the step."""
        time = sum(map(messages.moving, self.collectives))
        exposed = max(kernels.cluster.efficiency.exposed * time, time - beside)
        return StepTail(Traffic(time, exposed), kernels.moving(STEPPED * self.updated))


def _updated(parameters: Parameters, run: TrainingRun) -> float:
    """Parameters whose optimizer state the rank has."""
    dense = parameters.dense + parameters.tied
    if run.sharding is Sharding.NONE:
        return dense + parameters.expert
    return dense / run.dense_replicas + parameters.expert / run.expert_replicas
