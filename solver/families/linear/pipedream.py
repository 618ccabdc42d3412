"""PipeDream (Narayanan et al., 2019): 1F1B with an optimizer step after each microbatch.

The order of ops is that of 1F1B. After each BW the optimizer of that stage steps, with the gradient
of only that microbatch. P = 3, M = 4, T_F = T_B = T_W = 1; ``b0 --|`` is a fused BW and the step
after it::

    rank 0   F0 F1 F2 .  .  .  .  b0 --|F3 b1 --|.  b2 --|.  b3 --|
    rank 1   .  F0 F1 .  .  b0 --|F2 b1 --|F3 b2 --|.  b3 --|
    rank 2   .  .  F0 b0 --|F1 b1 --|F2 b2 --|F3 b3 --|

Staleness: the F of microbatch j on stage s runs after max(0, j - (P - 1 - s)) updates. Its BW uses
the same weights, a version that the rank keeps (weight stashing). So the gradient lags by P - 1 - s
updates, and by none on the last stage. One microbatch uses different versions on different stages:
the paper's vertical sync is not implemented. An iteration has M microbatches. The runtime drains
the pipeline at the end of an iteration, so no gradient lags across iterations; in a long iteration
(thousands of microbatches) that costs almost nothing.

Memory: the activations of 1F1B, and P - s versions of the weights of stage s. Bubble: that of 1F1B,
once per iteration.
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
