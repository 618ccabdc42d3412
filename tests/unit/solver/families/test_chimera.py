"""Chimera: two pipelines against each other, each stage on two ranks."""

from __future__ import annotations

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Reduce
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.transfers import holders
from pipeloom.solver.families import build_family


def built(name: str, ranks: int, microbatches: int) -> Schedule:
    return build_family(name, Profile((StageProfile(1.0, 1.0, 1.0),) * ranks, ranks), microbatches)


def idle(schedule: Schedule) -> float:
    return schedule.known_timing.makespan - schedule.known_timing.work / schedule.problem.ranks


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 16])
def test_bubble_and_memory(ranks: int) -> None:
    """Published for M = P; with more microbatches the next ones fill a part of it."""
    once, often = built("chimera", ranks, ranks), built("chimera", ranks, 4 * ranks)
    assert idle(once) == pytest.approx(2.0 * (ranks - 2))
    assert idle(often) <= idle(once)
    assert idle(once) < idle(built("1f1b", ranks, ranks))
    assert max(once.known_timing.peak_memory) <= ranks
    assert max(often.known_timing.peak_memory) <= ranks + 1


def test_both_ranks_of_a_stage_sum_its_gradients() -> None:
    schedule = built("chimera", 4, 4)
    assert holders(schedule) == ((0, 3), (1, 2), (1, 2), (0, 3))
    program = compile_schedule(schedule)
    for rank, row in enumerate(program.instructions):
        reduced = [item.stages for item in row if isinstance(item, Reduce)]
        assert reduced == [(stage,) for stage in range(4) if rank in holders(schedule)[stage]]
