"""Islands of ranks: the families in which weights and activations travel."""

from __future__ import annotations

import numpy as np
import pytest

from pipeloom.ir.cost.traffic import traffic
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import format_order
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.families import FAMILIES, build_family
from pipeloom.solver.families.weights.islands import usual_size

HYBRIDS = ("weights-inside", "activations-inside")


def build(name: str, ranks: int, microbatches: int, stages: int | None = None) -> Schedule:
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.0, activation_bytes=10.0, weight_bytes=1000.0)
    profile = Profile((stage,) * (stages or ranks), ranks, links=Links(Link(0.0, 1e9)))
    return build_family(name, profile, microbatches)


def orders(schedule: Schedule) -> list[str]:
    return [format_order(schedule.ops(rank)) for rank in range(schedule.problem.ranks)]


def test_weights_inside_as_its_file_draws_it() -> None:
    assert orders(build("weights-inside:2", 4, 4, stages=2)) == [
        "0F0 0F2 0BW0 0BW2",
        "0F1 0F3 0BW1 0BW3",
        "1F0 1BW0 1F2 1BW2",
        "1F1 1BW1 1F3 1BW3",
    ]


def test_activations_inside_as_its_file_draws_it() -> None:
    assert orders(build("activations-inside:2", 4, 4, stages=2)) == [
        "0F0 0F2 0BW0 0BW2",
        "1F0 1BW0 1F2 1BW2",
        "0F1 0F3 0BW1 0BW3",
        "1F1 1BW1 1F3 1BW3",
    ]


def test_a_rank_runs_its_stages_as_one() -> None:
    first, _, last, _ = orders(build("weights-inside:2", 4, 2, stages=6))
    assert first == "0F0 1F0 2F0 2BW0 1BW0 0BW0"
    assert last == "3F0 4F0 5F0 5BW0 4BW0 3BW0"


@pytest.mark.parametrize(("ranks", "size"), [(4, 1), (4, 2), (4, 4), (6, 2), (6, 3), (8, 4)])
def test_bubbles_and_memory_are_those_of_the_docs(ranks: int, size: int) -> None:
    count, islands = 4 * ranks, ranks // size
    for name, bubble in (("weights", ranks - size), ("activations", ranks - islands)):
        found = build(f"{name}-inside:{size}", ranks, count).known_timing
        assert found.period - 3.0 * count == pytest.approx(3.0 * bubble, abs=1e-3)
        assert max(found.peak_memory) == ranks


def test_what_travels_where() -> None:
    """Weights keep to the links inside islands, or to those between the same places of two."""
    fast = {(a, b) for a in range(4) for b in range(4) if a // 2 == b // 2 and a != b}
    sent = traffic(build("weights-inside:2", 4, 4))
    slow = [(0, 2), (1, 3), (2, 0), (3, 1)]
    assert all(sent[link] == 2 * 10.0 for link in slow)  # two microbatches each way a pair
    assert {(a, b) for a, b in np.argwhere(sent >= 1000).tolist()} == fast
    sent = traffic(build("activations-inside:2", 4, 4))
    assert all(sent[link] == 2 * 10.0 for link in fast)
    assert all(sent[link] >= 1000 for link in slow)


@pytest.mark.parametrize("name", ["weights-inside:1", "activations-inside:4"])
def test_one_end_is_activation_passing(name: str) -> None:
    schedule = build(name, 4, 6)
    assert schedule.transfers == ()
    assert orders(schedule) == orders(build("1f1b", 4, 6))
    assert schedule.problem.placement.passing is Passing.MIXED


@pytest.mark.parametrize("name", ["weights-inside:4", "activations-inside:1"])
def test_the_other_end_is_weight_passing(name: str) -> None:
    schedule = build(name, 4, 6)
    assert orders(schedule) == orders(build("fsdp", 4, 6))
    assert not any(t.blocks is not None for t in schedule.transfers)


def test_the_size_that_is_taken_where_none_is_given() -> None:
    assert [usual_size(ranks) for ranks in (1, 2, 3, 4, 6, 8, 12, 16)] == [1, 1, 1, 2, 2, 2, 3, 4]
    assert build("weights-inside", 4, 4).problem.placement.name == "weights-inside:2"


def test_islands_that_there_are_not() -> None:
    with pytest.raises(InputError, match=r"weights-inside:3: 4 ranks cannot be cut into islands"):
        build("weights-inside:3", 4, 4)
    with pytest.raises(InputError, match="activations-inside:4: expected a stage for each rank"):
        build("activations-inside:4", 4, 4, stages=3)
    with pytest.raises(InputError, match="Q a whole number >= 1"):
        build("weights-inside:0", 4, 4)
    problem = build("weights-inside:2", 4, 4).problem
    assert FAMILIES["weights-inside"].supports(problem) is None
    for name in HYBRIDS[1:]:
        reason = FAMILIES[name].supports(problem)
        assert reason == "needs the placement activations-inside:2, not weights-inside:2"
    assert Placement.weights_inside(4, 2, 4) == problem.placement
