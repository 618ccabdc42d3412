"""Names of placements in schedule files: read back as they are, and held against the order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_schedule, parse_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family

STAGE = StageProfile(1.0, 1.0, 1.0, m_b=1.0, m_w=0.5, weight_bytes=8.0, activation_bytes=1.0)
FAMILIES = {
    "gpipe": "linear",
    "interleaved-1f1b:3": "interleaved:3",
    "zb-v": "v",
    "wave:2": "wave:2",
    "chimera": "bidirectional",
    "fsdp": "round-robin",
}


def document(family: str = "gpipe") -> dict[str, Any]:
    return dump_schedule(build_family(family, Profile((STAGE,) * 4, 4), 4))


@pytest.mark.parametrize("family", FAMILIES)
def test_names_are_saved_and_hold(family: str) -> None:
    saved = document(family)
    assert saved["placement"] == FAMILIES[family]
    assert verify_schedule(saved) == []
    assert parse_schedule(saved, "s").problem.placement.name == FAMILIES[family]


@pytest.mark.parametrize("name", sorted({*FAMILIES.values()} - {"linear", "interleaved:3"}))
def test_another_name_is_found_out(name: str) -> None:
    lines = verify_schedule(document() | {"placement": name})
    assert lines
    assert all(f"placement {name}" in line or f"placement: {name}" in line for line in lines)


def test_files_without_a_name_and_with_names_of_no_rule_are_valid() -> None:
    saved = document("zb-v")
    assert verify_schedule(saved | {"placement": "owners.json"}) == []
    del saved["placement"]
    assert verify_schedule(saved) == []
    assert parse_schedule(saved, "s").problem.placement.name == "v"


@pytest.mark.parametrize("size", ["0", "9", "99999999999"])
def test_numbers_beyond_any_placement_are_wrong(size: str) -> None:
    for kind in ("interleaved", "wave"):
        assert verify_schedule(document() | {"placement": f"{kind}:{size}"}) != []


def test_a_name_is_text() -> None:
    with pytest.raises(InputError, match="placement: expected a string, got 3"):
        verify_schedule(document() | {"placement": 3})


def test_ranks_without_stages_leave_no_kind() -> None:
    schedule = build_family("gpipe", Profile((STAGE,), 1), 2)
    profile = Profile((STAGE,), 2, shared_by=1)
    problem = replace(schedule.problem, profile=profile, memory_limit=(9.0, 9.0))
    empty = schedule.order[0][:0]
    wide = replace(schedule, problem=problem, order=(*schedule.order, empty), timing=None)
    assert problem.placement == Placement.linear(1)
    assert dump_schedule(wide)["placement"] == "custom"
    assert verify_schedule(dump_schedule(wide)) == []
