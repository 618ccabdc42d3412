"""What follows the last backward: gradients are averaged and the optimizer steps.

Of the averaging, and of what FSDP gathers and scatters in each microbatch, ``exposed`` of the time
is waited for, or all that takes longer than the computation beside it, if that is more. The
optimizer waits for memory: :data:`STEPPED` bytes a parameter that the rank keeps the state of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..models.run import Run, Sharding
from ..models.states import step_collectives
from ..models.work import Parameters
from .collective_times import CollectiveTimes
from .kernel_times import KernelTimes
from .layer_times import Traffic

STEPPED = 38.0
"""Bytes that Adam in mixed precision moves a parameter: float32 gradients read for the norm, read
and zeroed (12), masters and two moments read and written (24), 16-bit weights written (2)."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """Of one rank. ``averaging``: of a step's gradients and, with FSDP, weights; ``optimizer``: ms."""

    averaging: Traffic
    optimizer: float

    @property
    def time(self) -> float:
        """Milliseconds that it adds to a step."""
        return self.averaging.exposed + self.optimizer


def step_end(
    layers: Iterable[Parameters],
    run: Run,
    beside: float,
    kernels: KernelTimes,
    messages: CollectiveTimes,
) -> StepEnd:
    """Of a rank with these layers. ``beside``: milliseconds that it computes in a microbatch."""
    held = list(layers)
    rounds = run.microbatches if run.sharding is Sharding.FSDP else 1
    exchanges = (each for parameters in held for each in step_collectives(parameters, run))
    time = rounds * sum(map(messages.moving, exchanges))
    share = kernels.cluster.efficiency.exposed
    exposed = max(share * time, time - run.microbatches * beside)
    own = sum(_updated(parameters, run) for parameters in held)
    return StepEnd(Traffic(time, exposed), kernels.moving(STEPPED * own))


def _updated(parameters: Parameters, run: Run) -> float:
    """Parameters whose optimizer state the rank has."""
    dense = parameters.dense + parameters.tied
    if run.sharding is Sharding.NONE:
        return dense + parameters.expert
    return dense / run.dense_replicas + parameters.expert / run.expert_replicas
