"""The space of configurations: what is in it, and what is wrong with what is fixed."""

from __future__ import annotations

from typing import Any

from pipeloom.planner.configurations.space import chunks
from pipeloom.planner.models.run_faults import faults_of
from tests.support.inner import Bounds, Space, preset

BATCH = {"gpus": 8, "global_batch": 16}


def names(model: str, **given: Any) -> set[str]:
    space = Space.of(model, preset("H100"), BATCH | given)
    cut = Bounds(space.model, space.cluster).cut
    return {each.name for run in space.degrees() for each in space.configurations(run, cut)}


def test_all_degrees_are_in_it() -> None:
    found = names("llama-3-8b")
    assert {"dp8 b1 zero1", "tp8 b16 full", "tp2 pp2 dp2 b1 fsdp", "cp8 b1 zero1"} <= found
    assert {"pp2 dp4 vp2 b1 zero1 cut v B/W", "pp8 vp4 b1 selective B/W"} <= found


def test_what_is_given_is_fixed() -> None:
    found = names("llama-3-8b", tp=2, pp=4, micro_batch=2, recompute="full", vp=1)
    assert found == {
        *("tp2 pp4 b2 full", "tp2 pp4 b2 full B/W"),
        *("tp2 pp4 b2 full cut", "tp2 pp4 b2 full cut B/W"),
    }


def test_one_replica_is_not_called_sharded() -> None:
    found = names("llama-3-8b", tp=4, sharding="fsdp", micro_batch=1, recompute="none", vp=1)
    assert {"tp4 dp2 b1 fsdp", "tp4 pp2 b1"} <= found
    assert not [
        name for name in found if "fsdp" in name and "dp2" not in name and "cp2" not in name
    ]


def test_a_family_alone() -> None:
    assert names("llama-3-8b", tp=4, pp=2, micro_batch=1, recompute="none", schedule="zb-v") == {
        "tp4 pp2 vp2 b1 v B/W",
        "tp4 pp2 vp2 b1 cut v B/W",
    }


def test_experts_are_spread_in_and_beside_tensor_parallel_groups() -> None:
    found = names("mixtral-8x7b", pp=1, micro_batch=1, recompute="none", sharding="zero1", cp=1)
    assert {"dp8 ep8 b1 zero1", "tp2 dp4 ep4 b1 zero1", "tp2 dp4 ep8 etp1 b1 zero1"} <= found


def test_no_run_has_a_fault() -> None:
    space = Space.of("gpt-oss-120b", preset("H100"), BATCH)
    assert not [line for run in space.degrees() for line in faults_of(run, space.model)]


def test_stages_of_a_rank_are_those_that_make_stages_smaller() -> None:
    assert chunks(32, 4) == (1, 2, 3, 4, 8)
    assert chunks(8, 8) == (1,)
    assert chunks(32, 1) == (1,)


def test_a_cut_may_count_the_ends() -> None:
    given: dict[str, Any] = {"pp": 2, "vp": 1, "micro_batch": 1, "recompute": "none", "tp": 4}
    found = names("llama-3-8b", **given, layers_per_stage="17,17")
    assert found == names("llama-3-8b", **given, layers_per_stage="16,16")
