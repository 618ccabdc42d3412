"""The work of one rank for one layer and one microbatch, as kernels and tensors.

A layer's work is a list of kernels for each of F, B and W, and R where something is recomputed:
products of matrices, attention, passes over memory, and collectives. Times are not here: they are
what a cluster makes of these (its rates, its links).

All figures are of **one rank** of a tensor, context and expert parallel group and of **one
microbatch**; bytes are bytes, FLOPs count a multiplication and an addition as two.

Bytes of weights, gradients and optimizer states on a rank, and what replicas exchange a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil, log2

from pipeloom.ir.model.ops import OpKind

from .precision import Precision
from .run import Sharding, TrainingRun


class Group(StrEnum):
    """Ranks that take part in a collective.

    ``EP`` are the ranks that hold different experts, ``ETP`` those that hold parts of the same
    experts; ``DP`` those that hold the same parameters outside of experts (data and context
    parallel ranks), ``EDP`` those that hold the same experts.
    """

    TP = "tp"
    CP = "cp"
    EP = "ep"
    ETP = "etp"
    DP = "dp"
    EDP = "edp"


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
class Kernel:
    """A kernel of ``op``. ``module``: the part of the layer that it belongs to."""

    name: str
    module: str
    op: OpKind


@dataclass(frozen=True, slots=True)
class Gemm(Kernel):
    """``count`` products of (m x k) and (k x n), run as one kernel.

    More than one are experts (a grouped product) or the batch and heads of unfused attention.
    ``precision``: of its operands; the result has the run's element size.
    """

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
class Attention(Kernel):
    """Fused attention: scores, softmax and weighted sum in one kernel that keeps no matrix.

    ``sequences`` of ``queries`` by ``keys`` positions; ``heads`` of queries. ``flops`` are those of
    the pairs computed, ``bytes`` those read and written. Where a ring of ranks shares out a
    sequence, as many kernels run one after the other, each with the keys of one.
    """

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
class Elementwise(Kernel):
    """``kernels`` passes over memory that read and write ``bytes`` in all: norms, activation
    functions, rotations, additions, casts, softmax."""

    bytes: float
    kernels: int


@dataclass(frozen=True, slots=True)
class Collective(Kernel):
    """``size`` ranks of ``group``; ``bytes`` as nccl-tests counts them, of one rank.

    All-reduce: the tensor. All-gather: what each rank has in the end. Reduce-scatter: what each
    has at the start. All-to-all: what each sends, to itself included. Send: the message, ``count``
    of them one after the other. What crosses a rank's link is :attr:`wire_bytes`.
    """

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

    @property
    def steps(self) -> int:
        """Messages one after the other, of which each has its latency."""
        others = self.size - 1
        if self.kind is CollectiveKind.ALL_REDUCE:
            return 2 * min(others, ceil(log2(self.size)))
        alone = self.kind in {CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND}
        return self.count if alone else others


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

    @property
    def model_flops(self) -> float:
        """F's, with all pairs that a token may look at: a window leaves fewer, the causal half is
        undone."""
        attention = sum(k.flops for k in self.of(OpKind.F) if isinstance(k, Attention))
        return self.flops(OpKind.F) + attention

    def bytes_moved(self, op: OpKind) -> float:
        """Read from and written to the device's memory, collectives aside."""
        return sum(k.bytes for k in self.of(op) if isinstance(k, Gemm | Attention | Elementwise))

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


def different(works: Sequence[LayerWork]) -> list[tuple[LayerWork, int]]:
    """The different layers, by identity, and how many there are of each."""
    counts = Counter(map(id, works))
    return [(work, counts[id(work)]) for work in {id(work): work for work in works}.values()]


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
