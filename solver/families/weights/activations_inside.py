"""Islands of Q ranks, each a pipeline of all stages: activations pass inside, weights between.

Microbatches are dealt out to the P/Q islands; each runs 1F1B on its own. Rank k of every island
holds the same stages: their weights come from the one that owns them, and their gradients go there.
P = 4, Q = 2, two stages, M = 4 (``B00`` a fused BW of stage 0, microbatch 0; weights of stage 0 go
to rank 2, of stage 1 to rank 3)::

    island 0  rank 0   F00 F02 .  B00 B02        island 1  rank 2   w F01 F03 .  B01 B03
              rank 1   .  F10 B10 F12 B12                  rank 3   .  F11 B11 F13 B13

Where a rank runs no more stages than it has buffers for, beside those that it owns, weights come
once an iteration, and their gradients leave once: data parallel pipelines. Q = P is 1F1B, Q = 1
weight passing.

Bubble of the period, without delays, P equal stages, P/Q dividing M: (P - P/Q)(T_F + T_B + T_W).
Memory: P x M_B of a stage, on the first rank of each island.
"""

from __future__ import annotations

from pipeloom.ir.model.placement import Placement

from .islands import IslandFamily


class ActivationsInside(IslandFamily):
    base = "activations-inside"
    summary = "hybrid: activations pass inside islands of Q ranks (:Q), weights between them"

    def placement(self, ranks: int, size: int, stages: int) -> Placement:
        return Placement.activations_inside(ranks, size, stages)
