"""B and W as one op that takes less: decided for each microbatch, never all or nothing."""

from __future__ import annotations

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.core.relaxations import fusible
from pipeloom.solver.optimize import optimize

LAST = StageProfile(4.0, 6.0, 4.0, m_b=10.0, m_w=4.0, t_bw=8.0)
PROFILES = [
    Profile((StageProfile(t_f, t_b, t_w, 10.0, 4.0, t_bw=t_bw), last), 2, t_comm=0.5)
    for (t_f, t_b, t_w, t_bw), last in (
        ((4.0, 5.0, 3.0, 7.0), StageProfile(3.0, 5.0, 4.0, m_b=10.0, m_w=4.0, t_bw=8.0)),
        ((3.0, 3.0, 2.0, 4.5), LAST),
    )
]


def problem(profile: Profile, microbatches: int) -> Problem:
    return Problem(profile, microbatches, Placement.linear(2), (20.0,) * 2)


def test_microbatches_of_one_stage_differ() -> None:
    """In the steady state of the busier rank fusing saves time; its last gradients are waited
    for."""
    found = optimize(problem(PROFILES[1], 4), work_limit=2.0)
    kinds = {op.kind for op in found.ops(1)}
    assert kinds == {OpKind.F, OpKind.B, OpKind.W, OpKind.BW}


def test_a_bw_that_takes_longer_is_no_lever() -> None:
    slow = StageProfile(4.0, 6.0, 4.0, m_b=10.0, m_w=4.0, t_bw=11.0)
    of = problem(Profile((slow,) * 2, 2), 3)
    assert not fusible(of).any()
    found = optimize(of, work_limit=0.5)
    assert OpKind.BW not in {op.kind for rank in range(2) for op in found.ops(rank)}
