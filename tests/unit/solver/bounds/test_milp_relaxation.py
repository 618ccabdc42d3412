"""The small MILP of four moments on each stage, as SCIP solves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeloom.ir.formats import load_profile
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.solver.bounds.milp_relaxation import relaxation
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.core.stopping import Budget

PROFILE = Path(__file__).parents[4] / "examples/profiles/zb-6.2b.json"
CEILING = 1899.4409999999978  # milliseconds, of a schedule


def test_a_doubtful_lp_writes_nothing_to_the_users_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """SoPlex said that it keeps no tolerance as small as it was asked for, each time."""
    profile = load_profile(PROFILE)
    problem = Problem(profile, 24, Placement.linear(8), profile.limit_from(None), Objective.PERIOD)
    linear = LinearInstance.of(problem)
    assert linear is not None
    found = relaxation(linear, problem.objective, CEILING, Budget(ops=2e8))
    assert capfd.readouterr() == ("", "")
    assert 0.999 * CEILING < found <= CEILING
