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

from dataclasses import dataclass
from itertools import combinations, product

from pipeloom.ir import Link, Links, Profile, StageProfile

from .assumed import Assumptions

INPUT = 2.0  # bytes that a layer holds of its input, in units of G S H
NUMBER, OPTIMIZER = 2.0, 12.0  # bytes of a number that is sent, and of a parameter's optimizer
TOUCHED = 257.0
"""Bytes read and written for a number G S H in F of a layer, one kernel an operation.

Two norms in float32 72, rotating q and k in float32 96, matrices in and out 38, gated activation on
8/3 H 27, two additions 12, attention in and out 8, transposing 4.
"""


@dataclass(frozen=True, slots=True)
class Transformer:
    """``layers``, ``hidden`` (H), ``sequence`` (S), ``microbatch`` (G), at the rates ``given``."""

    layers: int
    hidden: int
    sequence: int
    microbatch: int
    recompute: bool
    given: Assumptions

    @property
    def recomputed_bytes(self) -> float:
        """Bytes of a layer beside its input while its B runs after its second F; else 0."""
        return self._units(self.given.held_bytes - INPUT) if self.recompute else 0.0

    def on(self, ranks: int, links: Links) -> Profile:
        """The profile of one stage per rank.

        Layers are dealt out evenly, one more to the first stages where P does not divide them.
        """
        each, more = divmod(self.layers, ranks)
        stages = tuple(self._stage(each + (rank < more)) for rank in range(ranks))
        return Profile(stages, ranks, links=links)

    def _stage(self, layers: int) -> StageProfile:
        t_f, t_b, t_w = (layers * self._time(passes) for passes in (1, 2, 0))
        held, late = self.given.held_bytes, max(0.0, self.given.held_bytes - INPUT)
        if self.recompute:
            t_b += t_f
            held = late = INPUT
        parameters = layers * 12.0 * self.hidden**2
        sizes = layers * self._units(held), layers * self._units(late), self._units(NUMBER)
        kept = (NUMBER * parameters, NUMBER * parameters, OPTIMIZER * parameters)
        return StageProfile(t_f, t_b, t_w, *sizes, *kept)

    def _time(self, passes: int) -> float:
        """Milliseconds of an op of a layer that goes so often over attention and over memory."""
        given, touched = self.given, 0.0
        if given.memory is not None:
            touched = self._units(TOUCHED * passes) / (given.memory * 1e6)
        matrices = self._units(24.0 * self.hidden) / (given.matrix_teraflops * 1e9)
        attention = self._units(2.0 * passes * self.sequence)
        return matrices + attention / (given.attention_teraflops * 1e9) + touched

    def _units(self, units: float) -> float:
        """A number of times G S H."""
        return units * self.microbatch * self.sequence * self.hidden


def in_nodes(ranks: int, size: int, inside: Link, between: Link) -> Links:
    """Links of ``ranks`` ranks in nodes of ``size`` consecutive ones, joined by ``inside``, all
    others by ``between``.

    Whatever leaves a node goes over one wire, and so does whatever comes into it: its network
    card.
    """
    pairs = tuple(
        (a, b, inside) for a, b in combinations(range(ranks), 2) if a // size == b // size
    )
    cards: list[tuple[tuple[int, int], ...]] = []
    for first in range(0, ranks if size < ranks else 0, size):
        node = range(first, first + size)
        others = [rank for rank in range(ranks) if rank not in node]
        cards += [tuple(product(node, others)), tuple(product(others, node))]
    return Links(between, pairs, tuple(cards))
