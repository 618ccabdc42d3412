"""Schedules that repeat one building block (Pipeline Parallelism with Controllable Memory, Qi et
al., 2024).

The block says in which slot, all ops taking one, each leg of a microbatch runs on each rank;
microbatch j runs 6 j slots later, since it has six ops per rank. The legs take four slots of each
six on a rank; W's fill the others. How long a microbatch is held, from its F to its W, over six is
how many are held at once: a block that spreads the legs less holds less.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import finished
from .base import VShapeFamily
from .builder import F_UP, MeanStage, VBuilder

Block = Sequence[tuple[int, int, int, int]]  # by rank: the slots of F down, F up, B down, B up
_UNIT = MeanStage(t_f=1.0, t_b=1.0, t_w=1.0, delay=0.0, m_w=1.0)  # held until W ends
_PERIOD = 6


class RepeatedBlockFamily(VShapeFamily):
    """A family that repeats one block; the block is all that is its own."""

    @abstractmethod
    def block(self, ranks: int) -> Block: ...

    def schedule(self, problem: Problem) -> Schedule:
        ways = repeat(self.block(problem.ranks), problem.microbatches)
        return finished(problem, ways.order, self.name)


def repeat(block: Block, microbatches: int) -> VBuilder:
    """The legs in the block's order, as early as they can run, and the W's where there is time.

    A W runs where a rank would wait for a slot, and before an F that would not fit otherwise in the
    memory that the block takes with its own W's. An order of slots after the inputs' cannot
    deadlock.
    """
    ways = VBuilder(_UNIT, len(block), microbatches)
    chunks = max(_chunks(slots, microbatches) for slots in block)
    turns = sorted(
        (slot + _PERIOD * j, rank, leg)
        for rank, slots in enumerate(block)
        for leg, slot in enumerate(slots)
        for j in range(microbatches)
    )
    for _, rank, leg in turns:
        ready = ways.ready(rank, leg)
        assert ready is not None
        while ways.late[rank] and (
            ways.clock[rank] < ready or (leg <= F_UP and ways.held[rank] == chunks)
        ):
            ways.run_w(rank)
        ways.run(rank, leg)
    for rank in range(len(block)):
        while ways.late[rank]:
            ways.run_w(rank)
    return ways


def _chunks(slots: Sequence[int], microbatches: int) -> int:
    """How many chunks a rank holds at most where each W runs in the first slot that is free."""
    at = {slot + _PERIOD * j: leg for leg, slot in enumerate(slots) for j in range(microbatches)}
    assert len(at) == len(slots) * microbatches, f"two ops in one slot: {slots}"
    held = late = most = 0
    for slot in range(max(at) + 1):
        leg = at.get(slot)
        if leg is None:
            freed = min(late, 1)
            held, late = held - freed, late - freed
        elif leg <= F_UP:
            held += 1
            most = max(most, held)
        else:
            late += 1
    return most
