"""Fully sharded data parallelism (Rajbhandari et al., 2020, ZeRO-3), sharded by whole stages.

Rank r runs all stages of microbatches r, P + r, 2P + r, ..., one microbatch after the other: F of
stages 0 .. S-1, then BW of stages S-1 .. 0. Rank s mod P owns stage s. Before each F and each BW
the weights are gathered from their owner. After each BW the gradient is sent to the owner. A rank
keeps neither. P = 2, two stages, prefetch depth 0 (w: a rank waits for weights, d: for a gradient
to leave or arrive)::

    rank 0   F0 w F1 w B1 d B0 d F0 w F1 ...
    rank 1   w F0 F1 B1 d w B0 d w F0 ...

Prefetch depth K: the weights for an op are gathered while at most the K ops before it run, and a
gradient has arrived before the op starts that comes K + 1 ops after its own, both on the rank that
sends it and on the owner. So K = 0 overlaps nothing, and K = 1 is what implementations do. A rank
has buffers for the weights of K + 1 ops.

Traffic: all weights twice and all gradients once per microbatch, except for the stages that a rank
owns. With equal stages that is (P-1)/P of three models to and from each rank, as with an all-gather
before F and B and a reduce-scatter after. A rank sends and receives as many bytes, and keeps as
many weights, gradients and optimizer states, as if each stage were cut into P shards. But at one
moment one owner sends to all others, whereas shards would leave all ranks at once. If each pair of
ranks has its own wire, a gather takes as long as a whole stage over one link, P/(P-1) times as long
as an all-gather in a ring. If an owner has a single wire out, it takes P - 1 times that.

Without delays there is no bubble if P divides M. Memory: the activations of one microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeloom.ir.model.ops import Op, OpKind, unpack
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind

from ...weight_passing import round_orders
from ..base import ParametrizedFamily, RoundRobinFamily, finished

PREFETCHES = (0, 1)
"""The possible prefetch depths K."""


class FSDP(ParametrizedFamily, RoundRobinFamily):
    """Fully sharded data parallelism. ``number``: K, the prefetch depth in ops; None means 1."""

    base = "fsdp"
    summary = "data parallel, weights gathered before F and B (:K ops ahead, 1 by default)"
    parameter = "K"
    least, most = PREFETCHES

    def schedule(self, problem: Problem) -> Schedule:
        ranks = range(problem.ranks)
        rows = [unpack(row) for row in round_orders.rows(problem, problem.microbatches, 1)]
        lengths = [len(row) for row in rows]
        ahead = 1 if self.number is None else self.number
        transfers = [
            transfer for rank in ranks for transfer in _transfers(rank, rows[rank], lengths, ahead)
        ]
        return finished(problem, rows, self.name, transfers=transfers)


def _transfers(rank: int, row: list[Op], lengths: list[int], ahead: int) -> Iterator[Transfer]:
    """Yield the transfers of the weights that ``rank`` gathers and of the gradients that it sends.

    ``row``: the rank's ops. ``lengths``: the number of ops of each rank. ``ahead``: the prefetch
    depth K; the weights for an op may be gathered while the K ops before it run.
    """
    for i, op in enumerate(row):
        owner = op.stage % len(lengths)
        if owner == rank:
            continue
        copy = 2 * op.microbatch + (op.kind is OpKind.BW)
        room = max(0, i - ahead)
        yield Transfer(
            TransferKind.WEIGHT, op.stage, copy, owner, rank, after=0, before=i, room=room
        )
        if op.kind is OpKind.BW:
            done = i + 1 + ahead
            yield Transfer(
                TransferKind.GRADIENT,
                op.stage,
                op.microbatch,
                rank,
                owner,
                after=i + 1,
                before=min(done, lengths[owner]),
                room=min(i, lengths[owner]),
                blocks=min(done, lengths[rank]),
            )
