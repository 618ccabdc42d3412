"""The small MILP of four moments on each stage, as SCIP solves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeloom.ir.formats import load_profile
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds.milp_relaxation import relaxation
from pipeloom.solver.bounds.several_stages.rank_moments import rank_relaxation
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.core.stopping import Budget

PROFILE = Path(__file__).parents[4] / "examples/profiles/zb-6.2b.json"
CEILING = 1899.4409999999978  # milliseconds, of a schedule


@pytest.mark.parametrize("ceiling", [62.60842685397338, 73.81790275780318, 95.09811822424894])
def test_presolving_is_more_exact_than_constraints(ceiling: float) -> None:
    """SCIP took models with a solution of cost 61.2 as infeasible, and their ceiling as a bound."""
    times = 7.784302058969836, 10.052137249710935, 2.564111895512482
    stage = StageProfile(*times, m_b=1.3442074052001347, m_w=0.1325144610917616)
    limit = 4.032622215600404, 5.5093440818923005
    placement, objective = Placement.bidirectional(2), Objective.MAKESPAN
    problem = Problem(Profile((stage,) * 2, 2, 0.0), 3, placement, limit, objective)
    found = rank_relaxation(problem, ceiling, Budget())
    assert found is not None
    assert found.value == pytest.approx(3 * sum(times), rel=1e-6)


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
