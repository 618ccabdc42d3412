"""Memory of each rank: what is there for good, what microbatches hold, what comes and goes.

Held by microbatches is the most that the simulated schedule has at once, by the rules of the cost
model: M_B from F's start to B's end. On top comes what the layer that needs most has beside it
while it runs: what its recomputation brings back, gradients of its products' outputs, and the
workspace of its kernels; with FSDP its
gathered weights, and those of the next layer, which are fetched meanwhile, and where weights are
passed the buffers for what is on its way. ``reserve`` is what the allocator and libraries take
beside tensors, by the cluster's calibration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeloom.ir.model.ops import OpKind

from ..clusters.efficiency import Efficiency
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
    reached, held = step.cluster.efficiency, step.activation_bytes
    return tuple(
        _with_reserve(reached, each, float(held[r]), step.buffers[r])
        for r, each in _all_but_held(step)
    )


def rooms_of(step: StepTimes) -> tuple[float, ...]:
    """Bytes that the activations of each rank may take: what its device has beside all else, of
    which the allocator takes its share too. Buffers of weights on their way are not counted."""
    reached, device = step.cluster.efficiency, step.cluster.gpu.memory_gib
    tensors = (device - reached.context_gib) * GIB / (1 + reached.fragmentation)
    return tuple(max(0.0, tensors - each.total) for _, each in _all_but_held(step))


def _all_but_held(step: StepTimes) -> Iterator[tuple[int, RankMemory]]:
    """Each rank with its memory, without activations, what is on its way, and reserve."""
    owners = step.setup.owners
    for rank, (run, _) in enumerate(step.shares):
        yield rank, _rank(step, tuple(s for s, owner in enumerate(owners) if owner == rank), run)


def _with_reserve(reached: Efficiency, rank: RankMemory, held: float, buffers: float) -> RankMemory:
    gathered = rank.bytes["gathered"] + buffers
    found = {**rank.bytes, "activations": held, "gathered": gathered}
    reserve = reached.fragmentation * sum(found.values()) + reached.context_gib * GIB
    return RankMemory(rank.stages, found | {"reserve": reserve})


def _rank(step: StepTimes, stages: tuple[int, ...], run: tuple[int, ...]) -> RankMemory:
    states = [step.setup.states[s] for s in stages]
    works = [work for s in run for work in step.setup.work.stages[s]]
    fetched = 2 if step.setup.run.sharding is Sharding.FSDP else 1
    known = {
        "weights": sum(each.weights for each in states),
        "gradients": sum(each.gradients for each in states),
        "optimizer": sum(each.optimizer for each in states),
        "activations": 0.0,
        "gathered": fetched * max(each.gathered for each in states),
        "workspace": max(map(beside, works)),
    }
    return RankMemory(stages, known)


def beside(work: LayerWork) -> float:
    """Bytes beside M_B while the layer runs."""
    return work.m_r + work.workspace + sum(t.bytes for t in work.held if t.made is OpKind.B)
