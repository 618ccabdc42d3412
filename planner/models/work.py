"""The work of one rank for one layer and one microbatch, as kernels and tensors.

The work of a layer is a list of kernels for each of F, B and W, and for R if something is
recomputed: matrix products, attention, elementwise passes over memory, and collectives. Their times
follow from a cluster's rates and links.

All values are for **one rank** of a tensor, context and expert parallel group and for **one
microbatch**. Sizes are in bytes; in FLOPs, a multiplication and an addition count as two. This
module also computes the bytes of weights, gradients and optimizer states on a rank
(:func:`states_of`), and the collectives between replicas in each step (:func:`step_collectives`).
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
    """The group of ranks that take part in a collective.

    ``EP``: ranks with different experts; ``ETP``: ranks with parts of the same experts; ``DP``:
    ranks with the same parameters except experts (data and context parallel ranks); ``EDP``: ranks
    with the same experts.
    """

    TP = "tp"
    CP = "cp"
    EP = "ep"
    ETP = "etp"
    DP = "dp"
    EDP = "edp"

    def size(self, run: TrainingRun) -> int:
        """The number of ranks in the group."""
        replicas = {Group.DP: run.dense_replicas, Group.EDP: run.expert_replicas}
        return replicas[self] if self in replicas else int(getattr(run, self))

    def apart(self, run: TrainingRun) -> int:
        """The difference between the global numbers of neighboring ranks of the group."""
        apart = {Group.CP: run.tp, Group.DP: run.tp, Group.EP: run.etp}
        return (apart | {Group.EDP: run.etp * run.ep}).get(self, 1)


class CollectiveKind(StrEnum):
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    SEND = "send"
    """Each rank sends to one other rank, while it receives the same amount from another."""


class WorkKind(StrEnum):
    """The kind of a layer. ``MTP``: a multi-token prediction module, with its head and loss."""

    EMBEDDING = "embedding"
    DENSE = "dense"
    MOE = "moe"
    MTP = "mtp"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that runs in ``op`` (F, R, B or W)."""

    name: str
    op: OpKind


@dataclass(frozen=True, slots=True)
class Gemm(Kernel):
    """``count`` matrix products (m x k)(k x n), run as one kernel.

    If ``count`` is above 1, there is one product per expert (a grouped product), or one per
    sequence and head in unfused attention. ``precision``: the format of the operands; the result
    has the run's element size.
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
        """Bytes moved, if operands are read once and the result is written once."""
        read = (self.m * self.k + self.k * self.n) * self.precision.operand_bytes
        return self.count * (read + self.m * self.n * self.precision.element_bytes)


@dataclass(frozen=True, slots=True)
class Attention(Kernel):
    """Fused attention: scores, softmax and weighted sum in one kernel that does not store scores.

    ``rows``: number of query rows, over all sequences and heads. ``flops``: FLOPs of the pairs that
    are computed (causal); ``bytes``: bytes read and written. If a ring of ranks divides a sequence,
    this object stands for ``rounds`` kernels that run one after the other, each with the keys of
    one rank of the ring.
    """

    precision: Precision
    rows: float
    rounds: int
    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Elementwise(Kernel):
    """Passes over memory, such as norms, activation functions, additions, casts, and softmax.

    There are ``kernels`` passes, which read and write ``bytes`` in total.
    """

    bytes: float
    kernels: int


@dataclass(frozen=True, slots=True)
class Collective(Kernel):
    """A collective of ``size`` ranks in ``group``.

    ``apart``: the difference between the global numbers of neighboring ranks of the group.
    ``bytes`` is per rank and as in nccl-tests. All-reduce: the tensor. All-gather: the result.
    Reduce-scatter: the input. All-to-all: all that the rank sends, including to itself. Send: one
    message. ``count``: number of messages that are sent one after the other. :attr:`wire_bytes` is
    the number of bytes that cross a rank's link.
    """

    kind: CollectiveKind
    group: Group
    size: int
    apart: int
    bytes: float
    count: int = 1

    @property
    def wire_bytes(self) -> float:
        """Bytes that leave a rank if the best algorithm without in-network reduction is used."""
        others = (self.size - 1) / self.size
        factor = {CollectiveKind.ALL_REDUCE: 2 * others, CollectiveKind.SEND: 1.0}
        return self.bytes * self.count * factor.get(self.kind, others)

    @property
    def steps(self) -> int:
        """The number of messages that a rank sends one after the other, each with a latency."""
        others = self.size - 1
        if self.kind is CollectiveKind.ALL_REDUCE:
            return 2 * min(others, ceil(log2(self.size)))
        alone = self.kind in {CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND}
        return self.count if alone else others


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that is held from F to the end of B or W (``until``).

    ``made``: B if the tensor is an output gradient, which B computes and only W needs. ``dropped``:
    whether it is recomputed, and hence held only from R on.
    """

    name: str
    bytes: float
    until: OpKind
    made: OpKind = OpKind.F
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Parameters:
    """The numbers of parameters of a layer; experts are separate, as fewer ranks replicate them.

    ``total``: of the whole layer. ``dense`` and ``expert``: on one rank of the tensor and expert
    parallel groups, before sharding over data parallel ranks. ``tied``: parameters that are counted
    in another layer, and copied to ranks that do not have that layer.
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

    ``kernels``: in the order in which they run within each op; those of R precede those of B.
    ``workspace``: bytes that F or B need temporarily (float32 logits). ``message_bytes``: bytes
    that each rank sends to the next stage if the model is cut after this layer, and that the next
    stage returns as their gradient.
    """

    kind: WorkKind
    name: str
    kernels: tuple[Kernel, ...]
    held: tuple[Held, ...]
    parameters: Parameters
    workspace: float
    message_bytes: float

    def of(self, op: OpKind) -> Iterator[Kernel]:
        """The kernels of ``op``: F, R, B or W."""
        return (kernel for kernel in self.kernels if kernel.op is op)

    def flops(self, op: OpKind) -> float:
        """FLOPs of the matrix products and of attention in ``op``."""
        return sum(k.flops for k in self.of(op) if isinstance(k, Gemm | Attention))

    @property
    def model_flops(self) -> float:
        """FLOPs of F if a token attended to all positions, or to all within its window.

        That is, as if the causal mask removed no pairs.
        """
        attention = sum(k.flops for k in self.of(OpKind.F) if isinstance(k, Attention))
        return self.flops(OpKind.F) + attention

    def bytes_moved(self, op: OpKind) -> float:
        """Bytes that the kernels of ``op``, except collectives, read from and write to memory."""
        return sum(k.bytes for k in self.of(op) if isinstance(k, Gemm | Attention | Elementwise))

    @property
    def m_b(self) -> float:
        """M_B: bytes held from F's start to B's end, without tensors that R recomputes."""
        return sum(t.bytes for t in self.held if t.made is OpKind.F and not t.dropped)

    @property
    def m_w(self) -> float:
        """M_W: bytes held from B's end to W's end.

        These are the inputs and output gradients of matrix products. Tensors that were recomputed
        for B are held for W too, so that M_W can exceed M_B.
        """
        return sum(t.bytes for t in self.held if t.until is OpKind.W)

    @property
    def m_r(self) -> float:
        """Bytes held in addition to M_B from R's start to B's end: the recomputed tensors."""
        return sum(t.bytes for t in self.held if t.dropped)


def different(works: Sequence[LayerWork]) -> list[tuple[LayerWork, int]]:
    """The distinct layers, compared by identity, each with the number of times that it occurs."""
    counts = Counter(map(id, works))
    return [(work, counts[id(work)]) for work in {id(work): work for work in works}.values()]


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The work of all layers in forward order: embedding, decoder, multi-token prediction, head.

    Equal layers are one object, so that values derived from a layer can be cached by identity.
    """

    layers: tuple[LayerWork, ...]
    by_stage: tuple[int, ...]
    """The number of decoder layers of each stage."""

    @property
    def stages(self) -> tuple[tuple[LayerWork, ...], ...]:
        """The layers of each stage.

        The first stage includes the embedding, and the last stage the layers after the decoder.
        """
        starts = [1]
        for count in self.by_stage:
            starts.append(starts[-1] + count)
        starts[0], starts[-1] = 0, len(self.layers)
        return tuple(self.layers[a:b] for a, b in pairwise(starts))


_MOMENTS, _MASTER = 8.0, 4.0


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of training states on one rank: ``weights``, ``gradients``, ``optimizer`` states.

    ``updated``: the number of parameters whose optimizer state is on the rank. ``gathered``: bytes
    of the unsharded weights of one layer in the run's format, held while FSDP runs that layer.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    updated: float = 0.0
    gathered: float = 0.0

    @property
    def kept(self) -> float:
        """The sum of all bytes except ``gathered``."""
        return self.weights + self.gradients + self.optimizer

    def plus(self, other: States, times: int = 1) -> States:
        """The sum of these states and ``times`` times the states ``other``, on the same rank.

        ``gathered`` is the maximum, as layers do not run at the same time.
        """
        return States(
            self.weights + times * other.weights,
            self.gradients + times * other.gradients,
            self.optimizer + times * other.optimizer,
            self.updated + times * other.updated,
            max(self.gathered, other.gathered),
        )


def states_of(parameters: Parameters, run: TrainingRun) -> States:
    """The bytes of weights, gradients and optimizer states on one rank, with Adam in mixed
    precision.

    Weights are in the run's format, gradients in ``run.gradients``. The optimizer has 12 bytes per
    parameter: float32 weights and two moments (Micikevicius et al., 2018; Rajbhandari et al., 2020,
    section 3.1: 2, 2 and K = 12). If the run is in float32, the weights are their own master copy,
    and the optimizer has 8 bytes.

    All sharding divides the optimizer states by the number of replicas; ``zero2`` divides the
    gradients too, and ``fsdp`` also the weights. With ``fsdp``, weights are stored in float32, as
    in torch's ``fully_shard``, and those of the running layer are gathered in the run's format. A
    single replica gathers nothing.
    """
    dense = _states(parameters.dense + parameters.tied, run, run.dense_replicas)
    return dense.plus(_states(parameters.expert, run, run.expert_replicas))


def _states(count: float, run: TrainingRun, replicas: int) -> States:
    element, gradient = run.precision.element_bytes, run.gradients.element_bytes
    own = count if run.sharding is Sharding.NONE else count / replicas
    if run.sharding is Sharding.FSDP and replicas > 1:
        return States(_MASTER * own, gradient * own, _MOMENTS * own, own, element * count)
    optimizer = (_MOMENTS + (_MASTER if element < _MASTER else 0.0)) * own
    summed = own if run.sharding is Sharding.ZERO2 else count
    return States(element * count, gradient * summed, optimizer, own)


def step_collectives(parameters: Parameters, run: TrainingRun) -> tuple[Collective, ...]:
    """The collectives that the replicas of a layer run per step.

    Without sharding: an all-reduce of gradients. ``zero1`` and ``zero2``: a reduce-scatter of
    gradients and an all-gather of weights. ``fsdp``: an all-gather for each F, another for each B,
    and a reduce-scatter after each W. Gradients are sent in the format in which they are summed,
    weights in the run's format.
    """
    weight, gradient = run.precision.element_bytes, run.gradients.element_bytes
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    exchanges = [("gradients", OpKind.W, CollectiveKind.ALL_REDUCE, gradient)]
    if run.sharding is not Sharding.NONE:
        ops = (OpKind.F, OpKind.B) if run.sharding is Sharding.FSDP else (OpKind.F,)
        exchanges = [("weights", op, gather, weight) for op in ops]
        exchanges.append(("gradients", OpKind.W, scatter, gradient))
    return tuple(
        Collective(name, op, kind, group, size, group.apart(run), count * each)
        for group, count in ((Group.DP, parameters.dense), (Group.EDP, parameters.expert))
        if (size := group.size(run)) > 1 and count
        for name, op, kind, each in exchanges
    )
