"""Memory of each rank: persistent states, activations of microbatches, and temporary buffers.

Activations are the peak of the simulated schedule by the rules of the cost model: M_B is held from
the start of F to the end of B. To this is added the largest temporary memory of any layer while it
runs: recomputed activations, gradients with respect to the outputs of matrix products, and the
workspace of kernels. With FSDP, gathered weights are added: those of a layer, and of the next one,
which are prefetched. ``reserve`` is the overhead of the allocator and of libraries, by the
calibration of the cluster's GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from pipeloom.ir.model.ops import OpKind

from ..clusters.cluster import Cluster
from ..models.run import Sharding
from ..models.work import LayerWork, States
from .step import PredictedStep

GIB = 2.0**30
KINDS = ("weights", "gradients", "optimizer", "activations", "gathered", "workspace", "reserve")


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory on a device of one pipeline rank. ``stages``: the stages whose weights the rank keeps.
    ``bytes``: the bytes of each kind in :data:`KINDS`."""

    stages: tuple[int, ...]
    bytes: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.bytes.values())

    def to_dict(self) -> dict[str, object]:
        """Return the stages, and the memory of each kind and in total, in GiB."""
        by_kind = {kind: size / GIB for kind, size in self.bytes.items()}
        return {"stages": list(self.stages), **by_kind, "total": self.total / GIB}


def memory_of(step: PredictedStep) -> tuple[RankMemory, ...]:
    """Return the memory of each pipeline rank."""
    reached, found = step.cluster.efficiency, []
    for rank, held in zip(_kept(step), step.activation_bytes, strict=True):
        known = {**rank.bytes, "activations": float(held)}
        reserve = reached.fragmentation * sum(known.values()) + reached.context_gib * GIB
        found.append(RankMemory(rank.stages, known | {"reserve": reserve}))
    return tuple(found)


def fullest(step: PredictedStep) -> float:
    """Return the memory of the fullest device, in GiB."""
    return max(rank.total for rank in memory_of(step)) / GIB


def rooms_of(step: PredictedStep) -> tuple[float, ...]:
    """Return the bytes that each rank has for activations: the device's memory without everything
    else that the rank holds, and without the overhead of the allocator and of libraries.
    """
    tensors = room_of(step.cluster)
    return tuple(max(0.0, tensors - each.total) for each in _kept(step))


def room_of(cluster: Cluster) -> float:
    """Return the bytes of tensors that fit on a device, given the overhead of the allocator and of
    libraries."""
    whole = cluster.gpu.memory_gib - cluster.efficiency.context_gib
    return whole * GIB / (1 + cluster.efficiency.fragmentation)


def _kept(step: PredictedStep) -> Iterator[RankMemory]:
    """Yield the memory of each rank without activations and reserve."""
    setup, fetched = step.setup, 2 if step.setup.run.sharding is Sharding.FSDP else 1
    for stages in map(step.owned, range(setup.run.pp)):
        states = reduce(States.plus, (setup.states[s] for s in stages))
        known = {
            "weights": states.weights,
            "gradients": states.gradients,
            "optimizer": states.optimizer,
            "activations": 0.0,
            "gathered": fetched * states.gathered,
            "workspace": max(beside(work) for s in stages for work, _ in setup.stages[s]),
        }
        yield RankMemory(stages, known)


def beside(work: LayerWork) -> float:
    """Return the bytes that are held in addition to M_B while the layer runs."""
    return work.m_r + work.workspace + sum(t.bytes for t in work.held if t.made is OpKind.B)
