"""``optimize(for_=...)``: the best of what another system runs, held against all of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest

import pipeloom
from pipeloom import InfeasibleError, InputError, Objective, Profile, StageProfile, verify_schedule
from pipeloom.compiler.exporters.megatron_layout import read_parts
from pipeloom.ir import PlacementKind
from pipeloom.planner.partition import family_cut
from pipeloom.planner.partition.family_cut import FamilyPlan
from pipeloom.planner.partition.joint import stages_table
from pipeloom.planner.partition.systems import answer_for, find_system
from pipeloom.solver import NEVER, Rules, WorkLimit
from tests.support.inner import LayeredProfile, Status
from tests.support.layered_profiles import model, with_ends

RANKS, MICROBATCHES = 2, 4
LAYERS = model(7, Profile((), RANKS, 0.2), head=2.0)
QUICK = {"work_limit": 0.02, "solver": "heuristic"}
ENOUGH = QUICK | {"work_limit": 100.0}
"""Of work, for all cuts to be timed."""
ONE_EACH = Profile((StageProfile(1.0, 1.0, 1.0), StageProfile(2.0, 2.0, 2.0)), RANKS, 0.1)


def equal_layers(number: int) -> LayeredProfile:
    """Layers that take the same times, and messages that take none."""
    layers = model(number, Profile((), RANKS, 0.0)).layers[1:-2]
    return with_ends(LayeredProfile(layers, (False,) * number, Profile((), RANKS, 0.0)))


def every_cost(memory_limit: float = math.inf) -> float:
    """The least period of 1F1B and interleaved 1F1B over all cuts that Megatron has."""
    best, number = math.inf, len(LAYERS.layers) - 1  # the loss stays with the head
    for chunks in (1, 2, 3, 4):
        family = "1f1b" if chunks == 1 else f"interleaved-1f1b:{chunks}"
        for starts in combinations(range(1, number), chunks * RANKS - 1):
            try:
                made = pipeloom.build_family(
                    family, LAYERS.cut((0, *starts)), MICROBATCHES, memory_limit=memory_limit
                )
            except InfeasibleError:
                continue
            best = min(best, made.known_timing.period)
    return best


@pytest.mark.parametrize("limit", [math.inf, 8.5])
def test_megatron_gets_the_best_of_all_its_cuts_and_schedules(limit: float) -> None:
    answer = pipeloom.optimize(LAYERS, MICROBATCHES, for_="megatron", memory_limit=limit, **ENOUGH)
    assert answer.cost == pytest.approx(every_cost(limit), rel=1e-9)
    assert "stage  rank  a microbatch" in str(answer)  # the cut that was chosen
    assert answer.schedule.problem.profile.stages[-1].layers[-1].name in str(answer)
    assert answer.status is Status.OPTIMAL
    assert not verify_schedule(answer.document)
    layout = pipeloom.export(answer, "megatron-layout")
    assert len(read_parts(layout.text, "layout")) == answer.schedule.problem.stages
    assert not [note for note in layout.notes if "not this schedule" in note]
    assert sum(candidate.reason is None for candidate in answer.candidates) == 1
    assert "of all schedules that Megatron runs: at most 0 %" in str(answer)
    assert "note: " not in str(answer)


def test_torchtitan_gets_any_order_that_a_csv_can_say() -> None:
    answer = pipeloom.optimize(LAYERS, MICROBATCHES, for_="torchtitan", **QUICK)
    assert answer.lower_bound <= answer.cost <= every_cost() + 1e-9
    kind = answer.schedule.problem.placement.kind
    assert kind in {PlacementKind.LINEAR, PlacementKind.INTERLEAVED, PlacementKind.V}
    pipeloom.export(answer, "torchtitan")
    csv = pipeloom.export(answer, "torch-csv")
    assert any("pipeline_parallel_schedule " in flag for flag in csv.flags)
    assert {"gpipe", "1f1b", "interleaved-1f1b:2"} <= {each.name for each in answer.candidates}


def test_profiles_by_stages_are_cut_evenly() -> None:
    built = [
        pipeloom.build_family(family, ONE_EACH, MICROBATCHES)
        for family in ("1f1b", "interleaved-1f1b:2", "interleaved-1f1b:3", "interleaved-1f1b:4")
    ]
    least = min(made.timing.period for made in built if made.timing is not None)
    found = pipeloom.optimize(ONE_EACH, MICROBATCHES, for_="megatron", **QUICK)
    assert found.cost == pytest.approx(least)
    note = "note: a Megatron layout needs a profile by layers (profile --layers)"
    assert note in str(found).splitlines()
    torch = pipeloom.optimize(ONE_EACH, MICROBATCHES, for_="torchtitan", placement="v", **QUICK)
    assert torch.schedule.problem.placement.kind is PlacementKind.V
    pairs = replace(ONE_EACH, stages=tuple(replace(s, t_fb=3 * s.t_f) for s in ONE_EACH.stages))
    alone = pipeloom.optimize(pairs, MICROBATCHES, for_="torchtitan", placement="linear", **QUICK)
    assert not any(alone.schedule.pairs)


@pytest.mark.parametrize(("blocks", "chunks"), [(10, 5), (12, 6), (16, 8)])
def test_as_many_stages_a_rank_as_layers_allow_are_looked_at(blocks: int, chunks: int) -> None:
    answer = pipeloom.optimize(equal_layers(blocks), 2, for_="megatron", **ENOUGH)
    assert answer.schedule.problem.placement.name == f"interleaved:{chunks}"
    assert answer.cost == 3 * blocks + 3
    assert answer.lower_bound <= answer.cost


def test_what_is_not_looked_at_keeps_its_bound() -> None:
    layers = equal_layers(10)
    ended = pipeloom.optimize(
        layers, 2, for_="megatron", should_stop=lambda: True, solver="heuristic"
    )
    assert ended.lower_bound == pytest.approx(30.0)
    assert ended.status is not Status.OPTIMAL
    skipped = [c for c in ended.candidates if c.reason == "not searched for lack of time"]
    assert skipped
    assert all(c.cost is None and c.lower_bound is not None for c in skipped)
    tight = pipeloom.optimize(layers, 2, for_="torchtitan", **QUICK)
    assert tight.lower_bound == pytest.approx(30.0)
    assert any(c.name == "any order, interleaved:5 or more" for c in tight.candidates)


def test_a_listing_cut_short_that_finds_nothing_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(family_cut, "MOST_LISTED", 0)
    monkeypatch.setattr(family_cut._FamilyCuts, "cost", lambda self, cut: math.inf)
    monkeypatch.setattr(family_cut._FamilyCuts, "timed", lambda self, cut: None)
    limits = {"memory_limit": None, "objective": Objective.PERIOD, "rules": Rules()}
    found = family_cut.best_family_cut(
        "1f1b", LAYERS, RANKS, MICROBATCHES, stop=NEVER, work=WorkLimit(), **limits
    )
    assert found.why_not == "no cut that was looked at fits in memory"
    assert found.bound is not None
    assert 0 < found.bound <= every_cost()


def test_megatron_interleaves_multiples_of_its_ranks_alone() -> None:
    answer = pipeloom.optimize(LAYERS, 5, for_="megatron", **QUICK)
    assert answer.schedule.problem.placement.kind is PlacementKind.LINEAR
    reasons = {each.name: each.reason for each in answer.candidates}
    assert reasons["interleaved-1f1b:2"] == "needs a multiple of 2 microbatches"


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
@pytest.mark.parametrize("layers", [True, False])
def test_one_rank_has_one_stage(name: str, layers: bool) -> None:
    one = replace(LAYERS, cluster=Profile((), 1))
    given = one if layers else one.cut((0,))
    answer = pipeloom.optimize(given, MICROBATCHES, for_=name, **QUICK)
    assert answer.schedule.problem.placement.kind is PlacementKind.LINEAR
    assert not [each.name for each in answer.candidates if "interleaved" in each.name]
    assert read_parts(pipeloom.export(answer.schedule, "megatron-layout").text, "layout")
    for more in (given, one.cut((0, 4))):
        with pytest.raises(InputError, match=r"expected (linear|1), as"):
            pipeloom.optimize(more, 4, for_=name, placement="interleaved:2", **QUICK)


def test_a_systems_own_schedule_that_is_best_has_its_own_cut() -> None:
    """In words and facts, though any order was searched on another one."""
    free = pipeloom.optimize(LAYERS, 4, work_limit=1)
    own = pipeloom.optimize(LAYERS, 4, for_="megatron", work_limit=1)
    plans = [FamilyPlan("1f1b", own.schedule, own.cost)]
    dearer = replace(free, cost=own.cost + 1)
    found = answer_for(find_system("torchtitan"), plans, [], own.search, dearer)
    stages = own.schedule.problem.profile.stages
    parts = found.to_dict()["partition"]["parts"]
    assert [part["layers"] for part in parts] == [[x.name for x in s.layers] for s in stages]
    assert stages_table(own.schedule) in str(found)
    assert own.to_dict()["partition"]["parts"] == parts
