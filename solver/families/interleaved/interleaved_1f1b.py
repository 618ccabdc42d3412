"""Interleaved 1F1B (Narayanan et al., 2021, figure 4): K chunks of the model per rank.

A chunk is a stage: stage s runs on rank s mod P. P = 2, K = 2, M = 4, T_F = T_B = T_W of a chunk;
upper case is the first chunk (stages 0..P-1), lower case the second, ``B0 --`` a fused BW of
microbatch 0::

    rank 0   F0 F1 f0 f1 F2 .  b0 -- F3 b1 -- f2 B0 -- f3 B1 -- .  b2 -- .  b3 -- B2 -- B3 --
    rank 1   .  F0 F1 f0 b0 -- f1 b1 -- F2 B0 -- F3 B1 -- f2 b2 -- f3 b3 -- B2 -- B3 --

Forwards go in groups of at least P microbatches: a group passes the first chunk, then the second,
and so on; backwards do the same with the chunks reversed. Rank i runs (K - 1) G + 2 (P - 1 - i)
F's, G being the size of the largest group, before F and BW alternate. If P divides M, every group
has P microbatches, and this is Megatron's order. Otherwise there are M div P groups (one if M < P)
of sizes as equal as possible: with a group of fewer than P, each rank would idle until the group
reaches its next chunk.

No deadlock: number the F's of each rank from 0, and its BW's as well. The k-th F has the same chunk
and microbatch on all ranks, and so has the k-th BW. F k on rank 0 waits at most for F k - g on rank
P-1, where g is the size of its group. That F comes after BW k - g - (K - 1) G - 1 on rank P-1. This
BW waits for the BW that is g' (the size of its group) before it on rank 0, which comes after F k -
g - g' - 1 + 2 (P - 1) there. That is an earlier F than F k, since g + g' >= 2 P. (In a single
group, F k - g is among the warm-up F's of rank P-1.) If the chunk does not change, the numbers of
the F's decrease as well: F k on rank i comes after BW k - 1 - (its warm-up), and that on rank P-1
after F k - 1 - 2 (P - 1 - i).

Memory on rank 0: (K - 1) G + 2 P - 1 chunks, 1 + (P - 1)/(P K) times that of 1F1B if G = P. Bubble
without communication if M >= P: (P - 1)(T_F + T_B + T_W)/K, where the times are those of all chunks
of a rank. Every boundary between stages on different ranks costs t_comm, so a microbatch pays it K
times as often as with one stage per rank. With K = 1 this is 1F1B.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeloom.ir.model.ops import IntArray, OpKind, pack_all
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import finished, in_turn
from .base import InterleavedFamily


class Interleaved1F1B(InterleavedFamily):
    base = "interleaved-1f1b"
    summary = "1F1B over K chunks a rank (:K, 2 by default): 1/K of the bubble, more traffic"
    lead: ClassVar[int] = 2  # F's that a rank runs ahead of the next rank

    def schedule(self, problem: Problem) -> Schedule:
        chunks = problem.stages // problem.ranks
        lead = self.lead if chunks > 1 else 1
        order = [
            _rank(rank, problem.ranks, chunks, problem.microbatches, lead)
            for rank in range(problem.ranks)
        ]
        return finished(problem, order, f"{self.base}:{chunks}")


def _rank(rank: int, ranks: int, chunks: int, microbatches: int, lead: int) -> IntArray:
    sizes = _groups(ranks, microbatches)
    chunk, microbatch = np.array(_slots(sizes, chunks), dtype=np.int64).T
    warm_up = (chunks - 1) * max(sizes) + lead * (ranks - 1 - rank)
    forwards = pack_all(OpKind.F, chunk * ranks + rank, microbatch)
    backwards = pack_all(OpKind.BW, (chunks - 1 - chunk) * ranks + rank, microbatch)
    turn = 2 * np.arange(len(chunk))
    return in_turn([forwards, backwards], [turn - 2 * warm_up, turn + 1])


def _groups(ranks: int, microbatches: int) -> list[int]:
    """Return the number of microbatches of each group: at least P, or M in one group if M < P.

    The sizes are as equal as possible, the larger ones last. ``ranks``: P.
    """
    number = max(1, microbatches // ranks)
    return [(microbatches + i) // number for i in range(number)]


def _slots(sizes: list[int], chunks: int) -> list[tuple[int, int]]:
    """Return the chunk and the microbatch of each F, in the order in which a rank runs them.

    Groups run one after the other, and in each group chunk after chunk (0 to ``chunks`` - 1).
    ``sizes``: the number of microbatches of each group.
    """
    slots: list[tuple[int, int]] = []
    first = 0
    for size in sizes:
        slots += [(chunk, first + j) for chunk in range(chunks) for j in range(size)]
        first += size
    return slots
