"""The work of one rank for one layer and one microbatch, as kernels and tensors.

A layer's work is a list of kernels for each of F, B and W, and R where something is recomputed:
products of matrices, attention, passes over memory, and collectives. Times are not here: they are
what a cluster makes of these (its rates, its links).

All figures are of **one rank** of a tensor, context and expert parallel group and of **one
microbatch**; bytes are bytes, FLOPs count a multiplication and an addition as two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TypeAlias

from pipeloom.ir.model.ops import OpKind

from .precision import Precision


class Group(StrEnum):
    """Ranks that take part in a collective.

    ``EP`` are the ranks that hold different experts, ``ETP`` those that hold parts of the same
    experts; ``DP`` those that hold the same parameters outside of experts (data and context
    parallel ranks), ``EDP`` those that hold the same experts; ``PP`` neighbouring stages.
    """

    TP = "tp"
    CP = "cp"
    EP = "ep"
    ETP = "etp"
    DP = "dp"
    EDP = "edp"
    PP = "pp"


class CollectiveKind(StrEnum):
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    SEND = "send"
    """To one other rank, while as much comes in from one."""


class WorkKind(StrEnum):
    """``MTP``: a multi-token prediction module, with its head and loss."""

    EMBEDDING = "embedding"
    DENSE = "dense"
    MOE = "moe"
    MTP = "mtp"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class Gemm:
    """``count`` products of (m x k) and (k x n), run as one kernel.

    More than one are experts (a grouped product) or the batch and heads of unfused attention.
    ``precision``: of its operands; the result has the run's element size.
    """

    name: str
    module: str
    op: OpKind
    m: float
    n: float
    k: float
    count: float
    precision: Precision

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.count

    @property
    def bytes(self) -> float:
        """Operands read once, the result written once."""
        read = (self.m * self.k + self.k * self.n) * self.precision.operand_bytes
        return self.count * (read + self.m * self.n * self.precision.element_bytes)


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention: scores, softmax and weighted sum in one kernel that keeps no matrix.

    ``sequences`` of ``queries`` by ``keys`` positions; ``heads`` of queries. ``flops`` are those of
    the pairs computed, ``bytes`` those read and written. Where a ring of ranks shares out a
    sequence, as many kernels run one after the other, each with the keys of one.
    """

    name: str
    module: str
    op: OpKind
    sequences: float
    heads: float
    queries: float
    keys: float
    flops: float
    bytes: float

    @property
    def rounds(self) -> int:
        """Kernels, one for each rank of the ring."""
        return round(self.keys / self.queries)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """``kernels`` passes over memory that read and write ``bytes`` in all: norms, activation
    functions, rotations, additions, casts, softmax."""

    name: str
    module: str
    op: OpKind
    bytes: float
    kernels: int


@dataclass(frozen=True, slots=True)
class Collective:
    """``size`` ranks of ``group``; ``bytes`` as nccl-tests counts them, of one rank.

    All-reduce: the tensor. All-gather: what each rank has in the end. Reduce-scatter: what each
    has at the start. All-to-all: what each sends, to itself included. Send: the message, ``count``
    of them one after the other. What crosses a rank's link is :attr:`wire_bytes`.
    """

    name: str
    module: str
    op: OpKind
    kind: CollectiveKind
    group: Group
    size: int
    bytes: float
    count: int = 1

    @property
    def wire_bytes(self) -> float:
        """Bytes that leave a rank in the best algorithm without in-network reduction."""
        others = (self.size - 1) / self.size
        factor = {CollectiveKind.ALL_REDUCE: 2 * others, CollectiveKind.SEND: 1.0}
        return self.bytes * self.count * factor.get(self.kind, others)


Kernel: TypeAlias = Gemm | Attention | Elementwise | Collective


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor kept after F: to the end of B (``until`` B) or of W (``until`` W).

    ``module``: which one computes it again; ``dropped`` says that it does, so that it is held from
    R on alone. ``made`` B: an output gradient that only B makes, and W alone needs.
    """

    name: str
    module: str
    bytes: float
    until: OpKind
    made: OpKind = OpKind.F
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of a layer that a rank holds; those of experts have fewer replicas.

    ``total``: of the layer in all, once. ``dense`` and ``expert``: on a rank of the tensor and
    expert parallel groups, before any sharding over data parallel ranks. ``tied``: those that
    another layer counts, of which a rank that has not that layer holds a copy.
    """

    total: int
    dense: float
    expert: float
    tied: float = 0.0

    @property
    def held(self) -> float:
        return self.dense + self.expert


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer's work for one microbatch on one rank.

    ``kernels`` in the order in which they run within each op; ``R`` ones precede B.
    ``workspace``: bytes that F or B need while they run and give back (float32 logits).
    ``message_bytes``: what goes to the next stage where the model is cut after this layer, and
    comes back as its gradient; of one rank.
    """

    kind: WorkKind
    name: str
    kernels: tuple[Kernel, ...]
    held: tuple[Held, ...]
    parameters: Parameters
    workspace: float
    message_bytes: float

    def of(self, op: OpKind) -> Iterator[Kernel]:
        """The kernels of F, R, B or W."""
        return (kernel for kernel in self.kernels if kernel.op is op)

    def flops(self, op: OpKind) -> float:
        """FLOPs of products and attention."""
        return sum(k.flops for k in self.of(op) if isinstance(k, Gemm | Attention))

    def bytes_moved(self, op: OpKind) -> float:
        """Read from and written to the device's memory, collectives aside."""
        return sum(k.bytes for k in self.of(op) if not isinstance(k, Collective))

    @property
    def m_b(self) -> float:
        """M_B: held from F's start to B's end."""
        return sum(t.bytes for t in self.held if t.made is OpKind.F and not t.dropped)

    @property
    def m_w(self) -> float:
        """M_W: held from B's end to W's; the inputs and the output gradients of products.

        What was recomputed for B is held on for W, so that this may be more than M_B.
        """
        return sum(t.bytes for t in self.held if t.until is OpKind.W)

    @property
    def m_r(self) -> float:
        """Held in addition to M_B from R's start to B's end: what recomputation brings back."""
        return sum(t.bytes for t in self.held if t.dropped)


@dataclass(frozen=True, slots=True)
class ModelWork:
    """All layers in forward order: embedding, decoder layers, multi-token prediction, head.

    Like layers are the same object, so that what is derived of one can be kept by identity.
    """

    layers: tuple[LayerWork, ...]
    by_stage: tuple[int, ...]
    """Decoder layers of each stage."""

    @property
    def stages(self) -> tuple[tuple[LayerWork, ...], ...]:
        """The layers of each stage: embedding with the first, what follows decoders with the
        last."""
        starts = [1]
        for count in self.by_stage:
            starts.append(starts[-1] + count)
        starts[0], starts[-1] = 0, len(self.layers)
        return tuple(self.layers[a:b] for a, b in pairwise(starts))
