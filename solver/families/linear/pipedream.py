"""PipeDream (Narayanan et al., 2019): 1F1B whose optimizer steps after each microbatch.

The order is that of 1F1B; after each BW of its stage per rank steps the optimizer with that
microbatch's gradient alone. P = 3, M = 4, T_F = T_B = T_W = 1; ``b0 --|`` is a fused BW and the
step after it::

    rank 0   F0 F1 F2 .  .  .  .  b0 --|F3 b1 --|.  b2 --|.  b3 --|
    rank 1   .  F0 F1 .  .  b0 --|F2 b1 --|F3 b2 --|.  b3 --|
    rank 2   .  .  F0 b0 --|F1 b1 --|F2 b2 --|F3 b3 --|

Staleness: F of microbatch j on stage s runs after max(0, j - (P - 1 - s)) updates, and its BW uses
the same weights, of which the rank keeps that version (weight stashing): the gradient lags by P - 1
- s updates, on the last stage by none. Stages of one microbatch have different versions; what the
source calls vertical sync is not done. An iteration is M such microbatches. The pipeline is drained
at its end, as the runtime returns there, so no gradient lags across iterations; a long one (M of
thousands) costs next to nothing for it.

Memory: 1F1B's activations, and P - s versions of stage s's weights. Bubble: 1F1B's, once an
iteration.
"""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule, Updates

from .one_f_one_b import OneFOneB


class PipeDream(OneFOneB):
    name = "pipedream"
    summary = "1F1B that updates after each microbatch: stage s lags by P - 1 - s updates"

    def schedule(self, problem: Problem) -> Schedule:
        return replace(super().schedule(problem), updates=Updates.MICROBATCH)
