"""Islands of Q ranks that share stages: weights pass inside an island, activations to the next.

Each of the P/Q islands holds as many consecutive stages. Member k of every island runs the
microbatches k, Q + k, 2Q + k, ...: they come from member k of the island before and go to that of
the next, so that there are Q pipelines side by side, each in 1F1B. P = 4, Q = 2, two stages, M = 4,
one stage an island (``B00`` a fused BW of stage 0, microbatch 0; weights of stage 0 go to rank 1,
of stage 1 to rank 3)::

    island 0  rank 0   F00 F02 .  B00 B02        island 1  rank 2   .  F10 B10 F12 B12
              rank 1   w F01 F03 .  B01 B03                rank 3   .  F11 B11 F13 B13

Over each link between islands goes a Q-th of what activation passing sends over one, while weights
keep to the links inside. Q = 1 is 1F1B, Q = P is weight passing in which nobody waits for D.

Bubble of the period, without delays, P equal stages, Q dividing M: (P - Q)(T_F + T_B + T_W), 1F1B's
being (P - 1)(T_F + T_B + T_W). Memory: P x M_B of a stage, on the first island.
"""

from __future__ import annotations

from pipeloom.ir.model.placement import Placement

from .islands import IslandFamily


class WeightsInside(IslandFamily):
    base = "weights-inside"
    summary = "hybrid: weights pass inside islands of Q ranks (:Q), activations between them"

    def placement(self, ranks: int, size: int, stages: int) -> Placement:
        return Placement.weights_inside(ranks, size, stages)
