"""The family fsdp: its order, what it gathers when, its overlap, its traffic."""

from __future__ import annotations

import pytest

from pipeloom.ir.cost.traffic import traffic
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.ops import format_order
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.ir.model.schedule import Timing
from pipeloom.ir.model.transfers import owners
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family, find_family

STAGE = StageProfile(1.0, 1.0, 1.0, weight_bytes=2e6, grad_bytes=3e6)


def profile(ranks: int, stages: int, hop: float = 0.0) -> Profile:
    links = Links(Link(hop, 1e9))  # what a size adds to the latency is beyond what tests compare
    return Profile((STAGE,), ranks, links=links, shared_by=stages)


def timing(name: str, ranks: int, stages: int, count: int, hop: float) -> Timing:
    found = build_family(name, profile(ranks, stages, hop), count).timing
    assert found is not None
    return found


def test_two_ranks_three_stages() -> None:
    schedule = build_family("fsdp:0", profile(2, 3), 3)
    assert [format_order(schedule.ops(rank)) for rank in range(2)] == [
        "0F0 1F0 2F0 2BW0 1BW0 0BW0 0F2 1F2 2F2 2BW2 1BW2 0BW2",
        "0F1 1F1 2F1 2BW1 1BW1 0BW1",
    ]
    assert owners(schedule) == (0, 1, 0)
    into_1 = [
        (str(t.kind.value), t.stage, t.room, t.before) for t in schedule.transfers if t.target == 1
    ]
    assert into_1 == [
        ("weight", 0, 0, 0),
        ("weight", 2, 2, 2),
        ("weight", 2, 3, 3),
        ("gradient", 1, 4, 5),  # of 1BW0, while rank 1 runs its own 1BW1
        ("weight", 0, 5, 5),
        ("gradient", 1, 6, 6),  # of 1BW2, which has no counterpart there
    ]
    assert [t.blocks for t in schedule.transfers if t.blocks is not None] == [4, 5, 6, 11]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(("ranks", "stages", "count"), [(1, 2, 3), (2, 2, 5), (3, 7, 4), (4, 2, 3)])
def test_it_verifies(ranks: int, stages: int, count: int, ahead: int) -> None:
    schedule = build_family(f"fsdp:{ahead}", profile(ranks, stages, 0.7), count)
    assert verify_schedule(dump_schedule(schedule)) == []


def test_without_delays_there_is_no_bubble() -> None:
    links = timing("fsdp:0", 4, 4, 8, 0.0)
    assert links.makespan == pytest.approx(2 * 4 * 3, rel=1e-4)


def test_no_overlap_pays_every_gather_and_overlap_the_last_gradient() -> None:
    """P = S = 2, M = 2: each rank gathers for one of two F's and of two BW's, one gradient each
    way.

    ::

        no overlap   rank 0  F0 - F1 - B1 - B0 .      the second - is for the gather of B1, the
                     rank 1  - F0 F1 B1 - B0 .        third for rank 0's gradient to go to its owner
    """
    none = timing("fsdp:0", 2, 2, 2, 0.5)
    assert none.start[0].tolist() == pytest.approx([0.0, 1.5, 3.0, 5.5], rel=1e-4)
    assert none.start[1].tolist() == pytest.approx([0.5, 1.5, 2.5, 5.5], rel=1e-4)
    ahead = timing("fsdp:1", 2, 2, 2, 0.5)
    assert ahead.start[0].tolist() == pytest.approx([0.0, 1.0, 2.0, 4.0], rel=1e-4)
    assert ahead.start[1].tolist() == pytest.approx([0.5, 1.5, 2.5, 4.5], rel=1e-4)


@pytest.mark.parametrize("hop", [0.0, 0.3, 2.0])
def test_a_gather_ahead_is_never_slower(hop: float) -> None:
    none, one = (timing(f"fsdp:{ahead}", 4, 8, 12, hop).makespan for ahead in (0, 1))
    assert one <= none


@pytest.mark.parametrize("ahead", [0, 1])
def test_traffic_is_that_of_two_gathers_and_one_reduction(ahead: int) -> None:
    """Of every microbatch of the others, all stages that a rank owns: W twice out, D once in."""
    ranks, stages, count = 4, 8, 12
    sent = traffic(build_family(f"fsdp:{ahead}", profile(ranks, stages), count))
    owned, microbatches = stages // ranks, count // ranks
    each = owned * microbatches * (2 * 2e6 + 3e6)
    assert sent.tolist() == [[0.0 if a == b else each for b in range(ranks)] for a in range(ranks)]
    model, gradient = stages * 2e6, stages * 3e6
    share = (ranks - 1) / ranks
    assert sent.sum(axis=0)[0] == share * microbatches * (2 * model + gradient)


def test_the_parameter() -> None:
    assert find_family("fsdp").name == "fsdp"
    assert find_family("fsdp:0").name == "fsdp:0"
    for wrong in ("fsdp:", "fsdp:-1", "fsdp:x"):
        with pytest.raises(InputError, match=r"expected fsdp:K, K a whole number >= 0, got"):
            find_family(wrong)
    with pytest.raises(InputError, match="expected fsdp:1 at most, got 'fsdp:2'"):
        find_family("fsdp:2")
    one, default = (build_family(name, profile(3, 3), 4).transfers for name in ("fsdp:1", "fsdp"))
    assert one == default
