"""The order of every family at P = 4: long runs, fewer microbatches than ranks, and a remainder;
and small ones that a reader can follow by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeloom.ir.model.ops import format_order
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import build_family

GOLDEN = Path(__file__).with_name("family_orders.txt")
CASES = [block.splitlines() for block in GOLDEN.read_text(encoding="utf-8").strip().split("\n\n")]


@pytest.mark.parametrize("lines", CASES, ids=lambda lines: lines[0])
def test_orders(lines: list[str]) -> None:
    """Each block: a head of family, P and M, then one line a rank."""
    name, ranks, microbatches = lines[0].split()
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * int(ranks[2:]), int(ranks[2:]))
    schedule = build_family(name, profile, int(microbatches[2:]))
    assert [format_order(schedule.ops(r)) for r in range(profile.ranks)] == lines[1:]
