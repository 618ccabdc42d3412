"""Grouped interleaved 1F1B (Qi et al., 2024, the zero-bubble code): with the memory of 1F1B.

A chunk is a stage: stage s runs on rank s mod P. P = 2, K = 2, M = 4, T_F = T_B = T_W of a chunk;
upper case is the first chunk (stages 0..P-1), lower case the second, ``B0 --`` a fused BW of
microbatch 0::

    rank 0  F0 F1 f0 f1 .  .  b0 -- F2 b1 -- F3 B0 -- f2 B1 -- f3 b2 -- .  b3 -- B2 -- B3 --
    rank 1  .  F0 F1 f0 b0 -- f1 b1 -- F2 B0 -- F3 B1 -- f2 b2 -- f3 b3 -- B2 -- B3 --

It uses the building block of the zero-bubble code with groups of P: each rank runs the F's of P
microbatches on one chunk, then on the next, with BW's in between, as :mod:`.interleaved_1f1b` does.
That module's groups are used if P does not divide M. But rank i runs only P - 1 - i F's ahead of
the last rank, half as many as there. As in 1F1B, the gradient of an F is needed just when the later
ranks have had time to compute it.

No deadlock: the proof is that of :mod:`.interleaved_1f1b`, except that its last step needs k - g -
g' - 1 + (P - 1) < k.

Memory on rank 0: K P chunks if P divides M, P x M_B as in 1F1B. Bubble without communication: (P -
1)(T_F + T_B + T_W)/K, as in :mod:`.interleaved_1f1b`. The disadvantage: every boundary that a
microbatch crosses costs up to 2 t_comm of idle time, which the longer warm-up of
:mod:`.interleaved_1f1b` hides.
"""

from __future__ import annotations

from .interleaved_1f1b import Interleaved1F1B


class GroupedInterleaved1F1B(Interleaved1F1B):
    base = "interleaved-1f1b-grouped"
    summary = "interleaved 1F1B with half the lead (:K, 2 by default): 1F1B's memory"
    lead = 1
