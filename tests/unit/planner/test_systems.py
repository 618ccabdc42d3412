"""``optimize(for_=...)``: the best schedule that another system runs, compared with all of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

import pipeloom
from pipeloom import InfeasibleError, InputError, Profile, StageProfile, verify_schedule
from pipeloom.ir import PlacementKind, Status
from pipeloom.planner import Result
from tests.support.layered_profiles import equal_blocks, model

RANKS, MICROBATCHES = 2, 4
LAYERS = model(7, Profile((), RANKS, 0.2), head=2.0)
QUICK = {"work_limit": 0.02, "solver": "heuristic"}
ENOUGH = QUICK | {"work_limit": 100.0}
"""Enough work to time all cuts."""


def asked(profile: Any, system: str, microbatches: int = MICROBATCHES, **more: Any) -> Result:
    return pipeloom.optimize(profile, microbatches, for_=system, **QUICK | more)


def kind_of(answer: Result) -> PlacementKind:
    return answer.schedule.problem.placement.kind


def every_cost(memory_limit: float = math.inf) -> float:
    """The least period of 1F1B and interleaved 1F1B over all cuts that Megatron supports."""
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
    answer = asked(LAYERS, "megatron", memory_limit=limit, **ENOUGH)
    assert answer.cost == pytest.approx(every_cost(limit), rel=1e-9)
    assert answer.status is Status.OPTIMAL
    assert not verify_schedule(answer.document)
    assert sum(candidate.reason is None for candidate in answer.candidates) == 1
    assert "stage  rank  a microbatch" in str(answer)  # the chosen cut
    parts = answer.to_dict()["partition"]["parts"]
    stages = answer.schedule.problem.profile.stages
    assert [part["layers"] for part in parts] == [[x.name for x in s.layers] for s in stages]
    layout = pipeloom.export(answer, "megatron-layout")
    assert not [note for note in layout.notes if "not this schedule" in note]


@pytest.mark.parametrize(("blocks", "chunks"), [(10, 5), (12, 6), (16, 8)])
def test_as_many_stages_a_rank_as_layers_allow_are_looked_at(blocks: int, chunks: int) -> None:
    answer = asked(equal_blocks(blocks), "megatron", 2, **ENOUGH)
    assert answer.schedule.problem.placement.name == f"interleaved:{chunks}"
    assert answer.cost == 3 * blocks + 3
    assert answer.lower_bound <= answer.cost


def test_what_is_not_looked_at_keeps_its_bound() -> None:
    layers = equal_blocks(10)
    ended = asked(layers, "megatron", 2, should_stop=lambda: True, work_limit=None)
    assert ended.lower_bound == pytest.approx(30.0)
    assert ended.status is not Status.OPTIMAL
    skipped = [c for c in ended.candidates if c.reason == "not searched for lack of time"]
    assert skipped
    assert all(c.cost is None and c.lower_bound is not None for c in skipped)


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_one_rank_has_one_stage(name: str) -> None:
    one = replace(LAYERS, cluster=Profile((), 1))
    for given in (one, one.cut((0,))):
        answer = asked(given, name)
        assert kind_of(answer) is PlacementKind.LINEAR
        assert not [each.name for each in answer.candidates if "interleaved" in each.name]
    for given in (one, one.cut((0, 4))):
        with pytest.raises(InputError, match=r"expected (linear|1), as"):
            asked(given, name, placement="interleaved:2")


def test_torchtitan_gets_one_copy_of_the_weights() -> None:
    """Also where two copies fit on the device."""
    sizes = {"weight_bytes": 1.0, "grad_bytes": 1.0, "optimizer_bytes": 1.0}
    stages = (StageProfile(2.0, 3.0, 1.0, 1.0, 0.5, activation_bytes=1.0, **sizes),) * 4
    profile = Profile(stages, 4, t_comm=0.5, device_memory=(100.0,) * 4)
    names = {candidate.name for candidate in asked(profile, "torchtitan").candidates}
    assert "linear" in names
    assert "bidirectional" not in names
    assert "bidirectional" in {
        candidate.name for candidate in pipeloom.optimize(profile, MICROBATCHES, **QUICK).candidates
    }
