"""A transformer of equal layers at given rates: the profile of what has not been measured.

Counted are decoder layers alone, not embedding and head, of one width H with 4 H in the
feed-forward part and neither biases nor norms' parameters: 12 H^2 parameters each. What a layer
does and holds is the sum over its products and tensors (:mod:`pipeloom.planner.models.layers`).
Of G sequences of S:

* F: 24 G S H^2 FLOPs in its matrices, and 2 G S^2 H in causal attention, half of all pairs
* B: as many in its matrices, twice as many in attention
* W: 24 G S H^2; attention has no weights

It holds 34 G S H bytes from F to B, without the attention matrix, which fused kernels do not keep,
of which 32 stay until W, and sends 2. Norms, rotations, activation functions and additions wait for
memory: where its bandwidth is given, F takes the time of :data:`TOUCHED` bytes for each of its G S
H numbers, B of twice as many.

With ``recompute`` a layer holds its input alone, 2 G S H, and B begins with its F once more; for
families that run B and W as one op: what a W of its own would wait for is more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeloom import InputError, Profile, StageProfile
from pipeloom.ir.model.ops import OpKind
from pipeloom.planner.models.layers import work_of
from pipeloom.planner.models.layers.attention import CORE
from pipeloom.planner.models.model import Model
from pipeloom.planner.models.run import AttentionKernel, TrainingRun
from pipeloom.planner.models.work import Gemm, LayerWork

HELD, INPUT = 34.0, 2.0  # bytes, in units of G S H, at two bytes a number
CAUSAL = 0.5  # of all pairs of positions
TOUCHED = 257.0
"""Bytes read and written for a number G S H in F of a layer, one kernel an operation.

Two norms in float32 72, rotating q and k in float32 96, matrices in and out 38, gated activation on
8/3 H 27, two additions 12, attention in and out 8, transposing 4.
"""


@dataclass(frozen=True, slots=True)
class Transformer:
    """``layers``, ``hidden`` (H), ``sequence`` (S), ``microbatch`` (G); ``teraflops``: sustained.

    ``attention_teraflops``: what attention sustains, None: as much.
    ``memory_gigabytes_per_second``: None: what waits for memory takes no time. Numbers that are
    sent have ``element_bytes``; the optimizer keeps ``optimizer_bytes`` a parameter.
    ``held_bytes``: a layer's, in units of G S H.
    """

    layers: int
    hidden: int
    sequence: int
    microbatch: int
    teraflops: float
    element_bytes: float = 2.0
    optimizer_bytes: float = 12.0
    attention_teraflops: float | None = None
    memory_gigabytes_per_second: float | None = None
    recompute: bool = False
    held_bytes: float = HELD

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch: G S."""
        return self.microbatch * self.sequence

    @property
    def recomputed_bytes(self) -> float:
        """Bytes of a layer beside its input while its B runs after its second F; else 0."""
        return self._units(self.held_bytes - INPUT) if self.recompute else 0.0

    def on(self, cluster: Profile) -> Profile:
        """The profile of one stage a rank on the ranks and links of ``cluster``.

        Layers are dealt out evenly, one more to the first stages where P does not divide them.
        Raises InputError where there are fewer layers than ranks.
        """
        ranks = cluster.ranks
        if self.layers < ranks:
            raise InputError(f"layers: expected at least {ranks}, one a rank, got {self.layers}")
        each, more = divmod(self.layers, ranks)
        layer = self._layer()
        kinds = {count: self._stage(layer, count) for count in (each, each + 1)}
        stages = tuple(kinds[each + (rank < more)] for rank in range(ranks))
        return replace(cluster, stages=stages, t_comm=None)

    def _layer(self) -> LayerWork:
        """At two bytes a number, the attention matrix not held."""
        model = Model(
            name="transformer",
            hidden=self.hidden,
            layers=1,
            heads=1,
            kv_heads=1,
            head_dim=self.hidden,
            value_dim=self.hidden,
            width=4 * self.hidden,
            vocab=1,
            gated=False,
            tied=True,
            norm_parameters=0,
            dropout=True,
        )
        run = TrainingRun(
            micro_batch=self.microbatch,
            seq=self.sequence,
            recompute=frozenset({CORE}),
            attention=AttentionKernel.UNFUSED,
        )
        return work_of(model, run).layers[1]

    def _stage(self, layer: LayerWork, layers: int) -> StageProfile:
        times = {op: layers * self._time(layer, op) for op in (OpKind.F, OpKind.B, OpKind.W)}
        more = self._units(self.held_bytes - HELD)
        held, late = self._bytes(layer.m_b) + more, self._bytes(layer.m_w) + more
        if self.recompute:
            times[OpKind.B] += times[OpKind.F]
            held = late = self._units(INPUT)
        parameters = layers * layer.parameters.dense
        return StageProfile(
            t_f=times[OpKind.F],
            t_b=times[OpKind.B],
            t_w=times[OpKind.W],
            m_b=layers * held,
            m_w=layers * max(0.0, late),
            activation_bytes=self._bytes(layer.message_bytes),
            weight_bytes=self.element_bytes * parameters,
            grad_bytes=self.element_bytes * parameters,
            optimizer_bytes=self.optimizer_bytes * parameters,
        )

    def _time(self, layer: LayerWork, op: OpKind) -> float:
        """Milliseconds of F, B or W of a layer."""
        products = [kernel for kernel in layer.of(op) if isinstance(kernel, Gemm)]
        attention = CAUSAL * sum(kernel.flops for kernel in products if kernel.module == CORE)
        matrices = sum(kernel.flops for kernel in products if kernel.module != CORE)
        time = matrices / (self.teraflops * 1e9)
        time += attention / ((self.attention_teraflops or self.teraflops) * 1e9)
        if self.memory_gigabytes_per_second is not None:
            passes = {OpKind.F: 1, OpKind.B: 2, OpKind.W: 0}[op]
            time += passes * self._units(TOUCHED) / (self.memory_gigabytes_per_second * 1e6)
        return time

    def _units(self, units: float) -> float:
        """Bytes of ``units`` G S H at two bytes a number."""
        return self._bytes(units * self.tokens * self.hidden)

    def _bytes(self, sixteen_bits: float) -> float:
        """Bytes at ``element_bytes`` of what at two bytes a number are so many."""
        return sixteen_bits / 2 * self.element_bytes
