"""What ``show --measured`` says in words."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.report.attribution import attribute
from pipeloom.report.plan_vs_measured import text
from pipeloom.solver.families import build_family


def test_what_is_next_to_nothing_is_not_told() -> None:
    profile = Profile((StageProfile(10.0, 11.0, 8.0),) * 2, ranks=2, t_comm=0.1)
    plan = build_family("zb-h1", profile, 4)
    found = attribute(plan, plan)
    words = text(found)
    assert "slack" not in words
    assert "mostly" not in words
    assert "+0.000 ms (+0.0 %)" in text(replace(found, measured=found.planned - 1e-9))
    assert "slack  -0.250  the plan had" in text(replace(found, slack=0.25))
