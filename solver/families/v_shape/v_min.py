"""V-Min (Pipeline Parallelism with Controllable Memory, Qi et al., 2024): a third of 1F1B's memory.

P = 3, M = 3, T_F = T_B = T_W of a chunk; lower case is the second chunk (stages P..2P-1)::

    rank 0  F0 .  .  .  .  f0 F1 b0 w0 .  .  f1 F2 B0 b1 W0 w1 f2 .  B1 b2 W1 w2 .  .  B2 W2
    rank 1  .  F0 .  .  f0 .  .  F1 b0 w0 f1 .  B0 F2 W0 b1 f2 w1 B1 W1 .  b2 w2 .  B2 W2
    rank 2  .  .  F0 f0 .  .  .  .  F1 f1 b0 B0 w0 W0 F2 f2 b1 B1 w1 W1 .  .  b2 B2 w2 W2

Every leg takes one slot per rank, straight down, up, down and up, so no microbatch is held longer
than necessary. Memory: at most (P + 4)/3 times M_B. Bubble without communication at equal times: (4
P - 5)/6 times T_F + T_B + T_W, (4 P - 3)/6 times if 3 divides P. If T_F, T_B and T_W differ,
some time is lost in every period, because no op runs earlier than needed.
"""

from __future__ import annotations

from .repeated_block import Block, RepeatedBlockFamily


class VMin(RepeatedBlockFamily):
    name = "v-min"
    summary = "two chunks a rank in a V: a third of 1F1B's memory, two thirds of its bubble"

    def block(self, ranks: int) -> Block:
        apart = 0 if ranks % 3 else 2  # otherwise F's and B's would be in one slot
        return [
            (rank, 2 * ranks - 1 - rank, 2 * ranks + apart + rank, 4 * ranks - 1 + apart - rank)
            for rank in range(ranks)
        ]
