"""The profile of a transformer of equal layers, computed from given rates.

Only decoder layers are counted, not embedding and head. They have width H and 4 H in the
feed-forward part, no biases, and norms without parameters: 12 H^2 parameters each. For G sequences
of length S, one layer takes

* F: 24 G S H^2 FLOPs in matrix products, and 2 G S^2 H in causal attention (half of all pairs)
* B: as many in matrix products, twice as many in attention
* W: 24 G S H^2; attention has no weights

It holds 34 G S H bytes from F to B, of which 32 stay until W, and sends 2. The attention matrix is
not included, because fused kernels do not keep it. Norms, rotary embeddings, activation functions
and additions are limited by memory bandwidth: F also takes the time of :data:`TOUCHED` bytes for
each of its G S H elements, and B twice that.

With ``recompute``, a layer holds only its input, 2 G S H bytes, and B first runs F again. This is
meant for families that run B and W as one op, as a separate W would need to hold more.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product

from pipeloom.ir import Link, Links, Profile, StageProfile

from .assumed import Assumptions

INPUT = 2.0  # bytes per element of a layer's input, which has G S H elements
NUMBER, OPTIMIZER = 2.0, 12.0  # bytes of an element sent, and of a parameter's optimizer state
TOUCHED = 257.0
"""Bytes that F of a layer reads and writes per element (of G S H elements), with one kernel per
operation.

Two norms in float32: 72. Rotary embedding of q and k in float32: 96. Inputs and outputs of matrix
products: 38. Gated activation on 8/3 H: 27. Two additions: 12. Input and output of attention: 8.
Transposition: 4.
"""


@dataclass(frozen=True, slots=True)
class Transformer:
    """A model with ``layers``, width ``hidden`` (H), ``sequence`` length (S) and ``microbatch`` (G)
    sequences.

    ``given``: assumptions, with the rates of the GPU. ``recompute``: whether layers are recomputed.
    """

    layers: int
    hidden: int
    sequence: int
    microbatch: int
    recompute: bool
    given: Assumptions

    @property
    def recomputed_bytes(self) -> float:
        """Bytes that a layer holds during B in addition to its input, if it is recomputed; else
        0."""
        return self._units(self.given.held_bytes - INPUT) if self.recompute else 0.0

    def on(self, ranks: int, links: Links) -> Profile:
        """The model's profile with one stage per rank.

        Layers are distributed evenly. If P does not divide their number, each of the first stages
        gets one more.
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
        """The milliseconds of an op of one layer: its matrix products, and ``passes`` times the
        attention and the memory traffic of F."""
        given = self.given
        touched = self._units(TOUCHED * passes) / (given.memory * 1e6)
        matrices = self._units(24.0 * self.hidden) / (given.matrix_teraflops * 1e9)
        attention = self._units(2.0 * passes * self.sequence)
        return matrices + attention / (given.attention_teraflops * 1e9) + touched

    def _units(self, units: float) -> float:
        """``units`` x G S H."""
        return units * self.microbatch * self.sequence * self.hidden


def in_nodes(ranks: int, size: int, inside: Link, between: Link) -> Links:
    """Links between ``ranks`` ranks in nodes of ``size`` consecutive ranks.

    Ranks of the same node are connected by ``inside``, all others by ``between``. All messages that
    leave a node share one wire (its network card), and so do all messages that enter it.
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
