"""Memory of each rank: what is there for good, what microbatches hold, what comes and goes.

Held by microbatches is the most that the simulated schedule has at once, by the rules of the cost
model: M_B from F's start to B's end. On top comes what the layer that needs most has beside it
while it runs: what its recomputation brings back, gradients of its products' outputs, and the
workspace of its kernels; with FSDP its
gathered weights, and those of the next layer, which are fetched meanwhile. ``reserve`` is what the
allocator and libraries take beside tensors, by the cluster's calibration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeloom.ir.model.ops import OpKind

from ..models.run import Sharding
from ..models.work import LayerWork
from .step import StepTimes

GIB = 2.0**30
KINDS = ("weights", "gradients", "optimizer", "activations", "gathered", "workspace", "reserve")


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes on one device by kind, one of :data:`KINDS`; ``stages``: those that it runs."""

    stages: tuple[int, ...]
    bytes: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.bytes.values())

    def to_dict(self) -> dict[str, object]:
        """In GiB."""
        by_kind = {kind: size / GIB for kind, size in self.bytes.items()}
        return {"stages": list(self.stages), **by_kind, "total": self.total / GIB}


def memory_of(step: StepTimes) -> tuple[RankMemory, ...]:
    """The memory of each rank of the pipeline."""
    owners = step.setup.owners
    ranks = range(step.setup.run.pp)
    return tuple(
        _rank(step, tuple(s for s, owner in enumerate(owners) if owner == rank), rank)
        for rank in ranks
    )


def _rank(step: StepTimes, stages: tuple[int, ...], rank: int) -> RankMemory:
    states = [step.setup.states[s] for s in stages]
    works = [work for s in stages for work in step.setup.work.stages[s]]
    fetched = 2 if step.setup.run.sharding is Sharding.FSDP else 1
    found = {
        "weights": sum(each.weights for each in states),
        "gradients": sum(each.gradients for each in states),
        "optimizer": sum(each.optimizer for each in states),
        "activations": float(step.activation_bytes[rank]),
        "gathered": fetched * max(each.gathered for each in states),
        "workspace": max(map(_beside, works)),
    }
    reached = step.cluster.efficiency
    reserve = reached.fragmentation * sum(found.values()) + reached.context_gib * GIB
    return RankMemory(stages, found | {"reserve": reserve})


def _beside(work: LayerWork) -> float:
    """Bytes beside M_B while the layer runs."""
    return work.m_r + work.workspace + sum(t.bytes for t in work.held if t.made is OpKind.B)
