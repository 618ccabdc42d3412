"""Families that repeat a building block.

They are those of Pipeline Parallelism with Controllable Memory (Qi et al., 2024). All ops take one
*slot*. The block defines in which slot microbatch 0 passes each rank on each of its four *legs* (F
down, F up, B down, B up; see :mod:`.builder`). Microbatch j runs 6 j slots later than microbatch 0,
since each has six ops per rank. The legs take four of every six slots of a rank; W's fill the
others. The number of microbatches that a rank holds is the time for which it holds one, from its F
to its W, divided by six slots. So a block whose legs are closer together needs less memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import finished
from .base import VShapeFamily
from .builder import F_UP, MeanStage, VBuilder

Block = Sequence[tuple[int, int, int, int]]  # by rank, the slots of F down, F up, B down, B up
_UNIT = MeanStage(t_f=1.0, t_b=1.0, t_w=1.0, delay=0.0, m_w=1.0)  # held until W ends
_PERIOD = 6


class RepeatedBlockFamily(VShapeFamily):
    """A family that repeats one building block, which its subclass defines."""

    @abstractmethod
    def block(self, ranks: int) -> Block: ...

    def schedule(self, problem: Problem) -> Schedule:
        ways = repeat(self.block(problem.ranks), problem.microbatches)
        return finished(problem, ways.order, self.name)


def repeat(block: Block, microbatches: int) -> VBuilder:
    """Return the complete V schedule that repeats ``block``, each op as early as possible.

    The F's and B's run in the order of the block's slots. A W runs before one of them in two cases:
    if the rank would otherwise wait for an input, or if an F would otherwise exceed the memory that
    the block needs (the maximum of :func:`_chunks` over the ranks). In the order of the slots every
    op comes after its inputs, so there is no deadlock.
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
    """Return the maximum number of chunks that a rank holds at the same time.

    Each W runs in the first free slot after its B. ``slots``: the slots in which microbatch 0
    passes the rank on its four legs.
    """
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
