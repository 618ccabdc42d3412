"""A transformer of equal layers at given rates: the profile of what has not been measured.

Counted are decoder layers alone, not embedding and head, of one width H with 4 H in the
feed-forward part and neither biases nor norms' parameters: 12 H^2 parameters each. Of G sequences
of S a layer takes

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
from pipeloom.ir import OpKind

INPUT = 2.0  # bytes that a layer holds of its input, in units of G S H
NUMBER, OPTIMIZER = 2.0, 12.0  # bytes of a number that is sent, and of a parameter's optimizer
PASSES = {OpKind.F: 1, OpKind.B: 2, OpKind.W: 0}
"""Over attention and over memory."""
TOUCHED = 257.0
"""Bytes read and written for a number G S H in F of a layer, one kernel an operation.

Two norms in float32 72, rotating q and k in float32 96, matrices in and out 38, gated activation on
8/3 H 27, two additions 12, attention in and out 8, transposing 4.
"""


@dataclass(frozen=True, slots=True)
class Transformer:
    """``layers``, ``hidden`` (H), ``sequence`` (S), ``microbatch`` (G); ``teraflops``: sustained.

    ``attention_teraflops``: what attention sustains. ``memory_gigabytes_per_second``: None: what
    waits for memory takes no time. ``held_bytes``: a layer's, in units of G S H.
    """

    layers: int
    hidden: int
    sequence: int
    microbatch: int
    teraflops: float
    attention_teraflops: float
    memory_gigabytes_per_second: float | None
    recompute: bool
    held_bytes: float

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
        kinds = {count: self._stage(count) for count in (each, each + 1)}
        stages = tuple(kinds[each + (rank < more)] for rank in range(ranks))
        return replace(cluster, stages=stages, t_comm=None)

    def _stage(self, layers: int) -> StageProfile:
        times = {op: layers * self._time(op) for op in PASSES}
        held, late = self.held_bytes, max(0.0, self.held_bytes - INPUT)
        if self.recompute:
            times[OpKind.B] += times[OpKind.F]
            held = late = INPUT
        parameters = layers * 12.0 * self.hidden**2
        return StageProfile(
            t_f=times[OpKind.F],
            t_b=times[OpKind.B],
            t_w=times[OpKind.W],
            m_b=layers * self._units(held),
            m_w=layers * self._units(late),
            activation_bytes=self._units(NUMBER),
            weight_bytes=NUMBER * parameters,
            grad_bytes=NUMBER * parameters,
            optimizer_bytes=OPTIMIZER * parameters,
        )

    def _time(self, op: OpKind) -> float:
        """Milliseconds of F, B or W of a layer."""
        time = self._units(24.0 * self.hidden) / (self.teraflops * 1e9)
        attention = self._units(2.0 * PASSES[op] * self.sequence)
        time += attention / (self.attention_teraflops * 1e9)
        if self.memory_gigabytes_per_second is not None:
            touched = self._units(TOUCHED * PASSES[op])
            time += touched / (self.memory_gigabytes_per_second * 1e6)
        return time

    def _units(self, units: float) -> float:
        """A number of times G S H."""
        return units * self.tokens * self.hidden
