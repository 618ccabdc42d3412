"""A decoder-only transformer's profile by calculation, for what has not been measured.

Counted are the layers alone, not embedding and head, of one width H with 4 H in the feed-forward
part, 12 H^2 parameters each. For G sequences of S tokens a layer takes, in floating point
operations:

* F: 24 G S H^2 in its matrices, and 2 G S^2 H in causal attention (half of 4 G S^2 H)
* B: as many in its matrices, twice as many in attention
* W: 24 G S H^2; attention has no weights

Norms, rotations, activation functions and additions wait for memory instead: where its bandwidth is
given, F takes the time of :data:`TOUCHED` bytes for each of its G S H numbers, B of twice as many.

It holds 34 G S H bytes from F to B (two bytes a number; Korthikanti et al., 2022, without the
attention matrix, which fused kernels do not keep), of which the inputs and the output gradients of
its matrices, 32 G S H, stay until W. It sends 2 G S H. With ``recompute`` a layer holds its input
alone, 2 G S H, and B begins with its F once more; for families that run B and W as one op: what a W
of its own would wait for is more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.profile import Profile, StageProfile

HELD, INPUT = 34.0, 2.0  # bytes, in units of G S H, at two bytes a number
PARAMETERS = 12.0  # of a layer, in units of H^2
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
        return self._held(self.held_bytes - INPUT) if self.recompute else 0.0

    def on(self, cluster: Profile) -> Profile:
        """The profile of one stage a rank on the ranks and links of ``cluster``.

        Layers are dealt out evenly, one more to the first stages where P does not divide them.
        Raises InputError where there are fewer layers than ranks.
        """
        ranks = cluster.ranks
        if self.layers < ranks:
            raise InputError(f"layers: expected at least {ranks}, one a rank, got {self.layers}")
        each, more = divmod(self.layers, ranks)
        stages = tuple(self._stage(each + (rank < more)) for rank in range(ranks))
        return replace(cluster, stages=stages, t_comm=None)

    def _stage(self, layers: int) -> StageProfile:
        matrices, once = layers * self._matrices(), layers * self._forward_beside_matrices()
        parameters = layers * PARAMETERS * self.hidden**2
        again = matrices + once if self.recompute else 0.0
        kept = INPUT if self.recompute else self.held_bytes
        return StageProfile(
            t_f=matrices + once,
            t_b=matrices + 2 * once + again,
            t_w=matrices,
            m_b=layers * self._held(kept),
            m_w=layers * self._held(kept if self.recompute else max(0.0, kept - INPUT)),
            activation_bytes=self._held(INPUT),
            weight_bytes=self.element_bytes * parameters,
            grad_bytes=self.element_bytes * parameters,
            optimizer_bytes=self.optimizer_bytes * parameters,
        )

    def _matrices(self) -> float:
        """Milliseconds in F of a layer, in B and in W."""
        return 24.0 * self.tokens * self.hidden**2 / (self.teraflops * 1e9)

    def _forward_beside_matrices(self) -> float:
        """Milliseconds in F of a layer, half of those in B."""
        attention = 2.0 * self.tokens * self.sequence * self.hidden
        time = attention / ((self.attention_teraflops or self.teraflops) * 1e9)
        if self.memory_gigabytes_per_second is not None:
            time += self._held(TOUCHED) / (self.memory_gigabytes_per_second * 1e6)
        return time

    def _held(self, units: float) -> float:
        """Bytes of ``units`` G S H at two bytes a number."""
        return units / 2 * self.element_bytes * self.tokens * self.hidden
