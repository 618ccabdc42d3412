"""A decoder-only transformer's profile by calculation, for what has not been measured.

Counted are the layers alone, not embedding and head, of one width H with 4 H in the feed-forward
part, 12 H^2 parameters each. For G sequences of S tokens a layer takes, in floating point operations:

* F: 24 G S H^2 in its matrices, and 2 G S^2 H in causal attention (half of 4 G S^2 H)
* B: as many in its matrices, twice as many in attention
* W: 24 G S H^2; attention has no weights

It holds 34 G S H bytes from F to B (two bytes a number; Korthikanti et al., 2022, without the
attention matrix, which fused kernels do not keep), of which the inputs and the output gradients of its
matrices, 32 G S H, stay until W. It sends 2 G S H.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeloom.ir.errors import InputError
from pipeloom.ir.profile import Profile, StageProfile

HELD, KEPT_FOR_W = 34.0, 32.0  # bytes, in units of G S H
PARAMETERS = 12.0  # of a layer, in units of H^2


@dataclass(frozen=True, slots=True)
class Transformer:
    """``layers``, ``hidden`` (H), ``sequence`` (S), ``microbatch`` (G); ``teraflops``: sustained.

    Numbers that travel have ``element_bytes``; the optimizer keeps ``optimizer_bytes`` a parameter.
    """

    layers: int
    hidden: int
    sequence: int
    microbatch: int
    teraflops: float
    element_bytes: float = 2.0
    optimizer_bytes: float = 12.0

    @property
    def tokens(self) -> int:
        """Of a microbatch: G S."""
        return self.microbatch * self.sequence

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
        matrices = layers * 24.0 * self.tokens * self.hidden**2
        attention = layers * 2.0 * self.tokens * self.sequence * self.hidden
        parameters = layers * PARAMETERS * self.hidden**2
        numbers = float(self.tokens * self.hidden)
        return StageProfile(
            t_f=self._milliseconds(matrices + attention),
            t_b=self._milliseconds(matrices + 2 * attention),
            t_w=self._milliseconds(matrices),
            m_b=layers * HELD / 2 * self.element_bytes * numbers,
            m_w=layers * KEPT_FOR_W / 2 * self.element_bytes * numbers,
            activation_bytes=self.element_bytes * numbers,
            weight_bytes=self.element_bytes * parameters,
            grad_bytes=self.element_bytes * parameters,
            optimizer_bytes=self.optimizer_bytes * parameters,
        )

    def _milliseconds(self, operations: float) -> float:
        return operations / (self.teraflops * 1e9)
