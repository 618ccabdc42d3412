"""DualPipe (DeepSeek-V3, 2024): two pipelines in opposite directions, F's and BW's in pairs.

P = 4, M = 8, T_F = T_B = T_W, a pair takes as long as its ops (``F1'`` goes in the other direction,
``b0 --`` is a fused BW, pairs are in brackets)::

    rank 0  F0  F2  F4  F1' b1' W1' F3' [F6 b3' --] .   [F5' b0  --] b5' --  .   [F7' b2  --] b7' --  b4  W4  b6  W6
    rank 1  .   F0  F1' F2  F3' F4  b1' --  [F5' b0  --] [F6 b3' --] [F7' b2  --] b5' --  b4  --  .   b7' b6  W7' W6
    rank 2  .   F1' F0  F3' F2  F5' b0  --  [F4 b1' --] [F7' b2  --] [F6 b3' --] b4  --  b5' --  .   b6  b7' W6  W7'
    rank 3  F1' F3' F5' F0  b0  W0  F2  [F7' b2  --] .   [F4 b1' --] b4  --  .   [F6 b3' --] b6  --  b5' W5' b7' W7'

A rank of the first half and its mirror image in the second half do the same for opposite
directions. The steps are those of :mod:`..dualpipe_steps` on P/2 ranks, for half of the
microbatches in each direction. A rank's first chunk is its stage for the direction that enters on
its side. If M is odd, the other direction has one microbatch fewer.

If the profile has the time of an F and a BW that run at the same time (``t_fb``), a pair takes that
long (:mod:`pipeloom.ir.cost.overlap`), as published. Otherwise the F of a pair runs before its BW;
the order of ops is the same.

Memory: at most P + 1 microbatches, and two stages' weights. Bubble without communication, with
pairs, of the middle ranks (the outer ones have fewer pairs), if W <= F and F&B <= F + BW: (P/2 -
1)(F&B + F - 2 W). That equals the published (P/2 - 1)(F&B + BW - 3 W) if T_F = T_B. If M is odd, it
is larger by F&B.
"""  # noqa: E501

from __future__ import annotations

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..dualpipe_steps import DualPipeSteps, Row, ops_and_pairs, overlapped
from .base import BidirectionalFamily


class DualPipe(BidirectionalFamily):
    name = "dualpipe"
    summary = "two pipelines against each other, F's and backwards in pairs, each stage twice"

    def schedule(self, problem: Problem) -> Schedule:
        ranks, count = problem.ranks, problem.microbatches
        return overlapped(problem, [_rank(rank, ranks, count) for rank in range(ranks)], self.name)


def _rank(rank: int, ranks: int, microbatches: int) -> Row:
    lower = rank >= ranks // 2  # the half where the odd microbatches enter
    place = ranks - 1 - rank if lower else rank
    steps = DualPipeSteps(place, ranks // 2, (microbatches + 1) // 2).steps

    def microbatch(chunk: int, index: int) -> int:
        return 2 * index + (chunk != lower)

    return ops_and_pairs(steps, (place, ranks - 1 - place), microbatch, microbatches)
