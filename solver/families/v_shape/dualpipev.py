"""DualPipeV (the V of DeepSeek's DualPipe, 2025): two chunks per rank, F's and BW's in pairs.

P = 2, M = 5, T_F = T_B = T_W of a chunk; lower case is the second chunk (stages P..2P-1),
``B0 --`` a fused BW of microbatch 0::

    rank 0  F0 F1 F2 f0 b0 w0 f1 F3 b1 -- f2 B0 -- F4 b2 -- f3 B1 -- b3 -- f4 .  B2 -- b4 -- B3 W3 B4 W4
    rank 1  .  F0 f0 F1 f1 F2 b0 -- f2 B0 -- F3 b1 -- f3 B1 -- F4 b2 -- f4 B2 -- b3 -- B3 -- b4 B4 w4 W4

The steps are those of :mod:`..dualpipe_steps`, on P ranks. If the profile has the time of an F and
a BW that run at the same time (``t_fb``), a pair takes that long (:mod:`pipeloom.ir.cost.overlap`),
as published: the messages of an F are hidden behind the computation of a BW. Otherwise the F of a
pair runs before its BW; the order of ops is the same.

Memory: at most 2 P + 1 chunks, (P + 1/2) x M_B. Bubble without communication, in times of chunks,
with pairs, of the last rank, if W <= F and F&B <= F + BW: (P - 1)(F&B + F - 2 W), which equals the
published (P - 1)(F&B + BW - 3 W) if T_F = T_B. Without pairs, (P - 1)(2 T_B - T_W) at T_F = T_B,
because the output of a pair's F need not wait for its BW.
"""  # noqa: E501

from __future__ import annotations

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..dualpipe_steps import DualPipeSteps, ops_and_pairs, overlapped
from .base import VShapeFamily


class DualPipeV(VShapeFamily):
    name = "dualpipev"
    summary = "two chunks a rank in a V, F's and backwards in pairs, at once where t_fb is known"

    def schedule(self, problem: Problem) -> Schedule:
        ranks, count = problem.ranks, problem.microbatches
        rows = []
        for rank in range(ranks):
            steps, stages = DualPipeSteps(rank, ranks, count).steps, (rank, 2 * ranks - 1 - rank)
            rows.append(ops_and_pairs(steps, stages, lambda _, index: index, count))
        return overlapped(problem, rows, self.name)
