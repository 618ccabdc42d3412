"""Chimera: two pipelines against each other, each stage on two ranks."""

from __future__ import annotations

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.ops import format_order
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Reduce
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.transfers import holders
from pipeloom.solver.families import build_family


def built(name: str, ranks: int, microbatches: int) -> Schedule:
    return build_family(name, Profile((StageProfile(1.0, 1.0, 1.0),) * ranks, ranks), microbatches)


def idle(schedule: Schedule) -> float:
    return schedule.known_timing.makespan - schedule.known_timing.work / schedule.problem.ranks


def test_the_order_is_the_one_drawn() -> None:
    schedule = built("chimera", 4, 4)
    assert [format_order(schedule.ops(rank)) for rank in range(4)] == [
        "0F0 0F2 3F1 3BW1 3F3 3BW3 0BW0 0BW2",
        "1F0 2F1 1F2 2F3 2BW1 1BW0 2BW3 1BW2",
        "1F1 2F0 1F3 2F2 2BW0 1BW1 2BW2 1BW3",
        "0F1 0F3 3F0 3BW0 3F2 3BW2 0BW1 0BW3",
    ]


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
