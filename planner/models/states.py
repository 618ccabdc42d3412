"""Bytes of weights, gradients and optimizer states on a rank, and what replicas exchange a step."""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.model.ops import OpKind

from .run import Sharding, TrainingRun
from .work import Collective, CollectiveKind, Group, Parameters

_MOMENTS, _MASTER = 8.0, 4.0


@dataclass(frozen=True, slots=True)
class States:
    """Bytes on one rank: ``weights``, ``gradients``, ``optimizer`` states.

    ``gathered``: of one layer's weights whole, in the run's format, while FSDP runs it.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float = 0.0

    @property
    def kept(self) -> float:
        """All but what is gathered for use."""
        return self.weights + self.gradients + self.optimizer

    def __add__(self, other: States) -> States:
        """The states of two layers on one rank, one of which runs at a time."""
        return States(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
            max(self.gathered, other.gathered),
        )


def states_of(parameters: Parameters, run: TrainingRun) -> States:
    """With Adam in mixed precision: weights in the run's format, gradients in ``run.gradients``,
    and 12 bytes a parameter, float32 weights and two moments (Micikevicius et al., 2018;
    Rajbhandari et al., 2020, section 3.1: 2, 2 and K = 12).

    In float32 the weights are their own master: 8 bytes. Sharding divides the optimizer by the
    replicas, with ``zero2`` gradients too, with ``fsdp`` weights too: float32 ones, as torch's
    ``fully_shard`` keeps them, of which a layer at work is gathered in the run's format; one
    replica alone has nothing to gather.
    """
    dense = _states(parameters.dense + parameters.tied, run, run.dense_replicas)
    return dense + _states(parameters.expert, run, run.expert_replicas)


def _states(count: float, run: TrainingRun, replicas: int) -> States:
    element, gradient = run.precision.element_bytes, run.gradients.element_bytes
    master = _MASTER if element < _MASTER else 0.0
    if run.sharding is Sharding.FSDP and replicas > 1:
        own = count / replicas
        return States(_MASTER * own, gradient * own, _MOMENTS * own, element * count)
    optimizer = (_MOMENTS + master) * count
    if run.sharding is not Sharding.NONE:
        optimizer /= replicas
    whole = gradient * count
    return States(
        element * count, whole / replicas if run.sharding is Sharding.ZERO2 else whole, optimizer
    )


def step_collectives(parameters: Parameters, run: TrainingRun) -> tuple[Collective, ...]:
    """The collectives of a layer's replicas once a step; with ``fsdp`` at each of its ops.

    Without sharding an all-reduce of gradients; ``zero1`` and ``zero2`` a reduce-scatter of them
    and an all-gather of weights; ``fsdp`` an all-gather for F and one for B, and a reduce-scatter
    after W. In the format in which gradients are summed, and weights are computed with.
    """
    parts = (
        (Group.DP, parameters.dense, run.dense_replicas),
        (Group.EDP, parameters.expert, run.expert_replicas),
    )
    return tuple(
        Collective(name, "replicas", op, kind, group, size, count * each)
        for group, count, size in parts
        if size > 1 and count
        for name, op, kind, each in _exchanges(run)
    )


def _exchanges(run: TrainingRun) -> list[tuple[str, OpKind, CollectiveKind, float]]:
    """Name, op, kind and bytes a parameter."""
    weight, gradient = run.precision.element_bytes, run.gradients.element_bytes
    if run.sharding is Sharding.NONE:
        return [("gradients", OpKind.W, CollectiveKind.ALL_REDUCE, gradient)]
    scatter = ("gradients", OpKind.W, CollectiveKind.REDUCE_SCATTER, gradient)
    gathers = [("weights", OpKind.F, CollectiveKind.ALL_GATHER, weight)]
    if run.sharding is Sharding.FSDP:
        gathers.append(("weights", OpKind.B, CollectiveKind.ALL_GATHER, weight))
    return [*gathers, scatter]
