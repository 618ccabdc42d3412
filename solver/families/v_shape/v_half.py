"""V-Half (Pipeline Parallelism with Controllable Memory, Qi et al., 2024): half of 1F1B's memory.

P = 3, M = 3, T_F = T_B = T_W of a chunk; lower case is the second chunk (stages P..2P-1)::

    rank 0  F0 F1 .  .  .  f0 b0 F2 w0 f1 b1 w1 B0 W0 .  f2 b2 B1 w2 W1 .  B2 W2
    rank 1  .  F0 .  .  f0 F1 .  b0 f1 w0 F2 B0 b1 W0 f2 w1 B1 b2 W1 w2 B2 W2
    rank 2  .  .  F0 f0 .  .  F1 f1 b0 B0 w0 F2 W0 f2 b1 B1 w1 W1 b2 B2 w2 W2

The way down takes two slots per rank, so that F's down and up, and B's down and up, leave room for
each other where they meet. A microbatch is held, in total, for half as long as in 1F1B. Memory: P/2
+ 1 times M_B (P + 2 chunks) if P is even, one chunk less if it is odd. Bubble without communication
at equal times: (P - 1)(T_F + T_B + T_W)/2 if P is even, (3 P - 4)/6 times their sum if it is odd.
If T_F, T_B and T_W differ, some time is lost in every period.
"""

from __future__ import annotations

from .repeated_block import Block, RepeatedBlockFamily


class VHalf(RepeatedBlockFamily):
    name = "v-half"
    summary = "two chunks a rank in a V: half of 1F1B's memory, half of its bubble"

    def block(self, ranks: int) -> Block:
        apart = 0 if ranks % 2 else 3  # otherwise F's and B's would be in one slot
        return [
            (
                2 * rank,
                3 * ranks - 2 - rank,
                3 * ranks - 1 + apart + 2 * rank,
                6 * ranks - 2 + apart - rank,
            )
            for rank in range(ranks)
        ]
