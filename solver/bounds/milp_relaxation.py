"""A lower bound from a small MILP over the moments of each stage (one stage per rank).

If stages differ, it is stronger than the closed forms, as it accounts for the start of one stage
together with the end of another. It has a few integers per stage, whatever M is.

Moments of stage i: S_i, its first op starts (an F); y_i, its first B starts; t_i, its last F
starts; V_i, its last B ends; e_i, its last op ends (a W)::

    S_i ── n_i F's ── y_i ── F's, B's, W's ── t_i ── one F, a_i B's, r_i W's ── V_i ── W's ── e_i

Proof that every schedule of cost C <= ceiling gives a solution of the MILP:

*Counts.* A microbatch stays, is recomputed or is offloaded on stage i; choice k
(:class:`.memory_time.Ways`) is made for c_k microbatches, and R_k is the time of its R, or 0. n_i
F's run before the first B. At t_i the B's of a_i microbatches are still to come, that of the last F
included, and of q_i other microbatches only the W's; memory holds all of these together. At y_i and
at t_i, a microbatch whose B has not run holds M_B if its R has run, otherwise what its choice
keeps. At y_i at least one holds M_B.

*Within a stage.* Let A = sum c_k R_k, A_y the time of the R's before y_i and A_t that of the R's
after t_i; the counts determine all three. The ops in the diagram must fit between its moments:

    y_i >= S_i + n_i f_i + A_y
    t_i >= y_i + (M - 1 - n_i) f_i + (M - a_i) b_i + (M - a_i - q_i) w_i + A - A_y - A_t   (n_i < M)
    V_i >= t_i + f_i + a_i b_i + r_i w_i + A_t                              r_i < a_i + q_i
    e_i >= V_i + (a_i + q_i - r_i) w_i
    M_B + (a_i + q_i - r_i - 1) M_W <= limit, as the last B runs

Here r_i < a_i + q_i because the W of the last B comes after V_i. If n_i = M (z_i = 1), all B's are
to come at t_i. In either case

    V_i >= y_i + (M - n_i) f_i + M b_i + (M - a_i - q_i + r_i) w_i + A - A_y.

Copies to the host use one channel, one after the other, from the end of the first F on; those of
microbatches that are offloaded at y_i have ended by then. Finally, the memory-time of all
microbatches (what they hold, times how long they hold it) fits into memory limit times span
(:mod:`.memory_time`).

*Between stages.* The microbatches of the first F, last F, first B and last B of a stage have passed
the neighboring stage, or go on to it; turn_i is R_i of
:class:`..core.linear_instance.LinearInstance`:

    S_(i+1) >= S_i + f_i + down_i          y_i >= y_(i+1) + b_(i+1) + up_i
    t_(i+1) >= t_i + f_i + down_i          V_i >= V_(i+1) + up_i + b_i
    y_i >= S_i + turn_i                    V_i >= t_i + turn_i + b_i

*Cost.* e_i - S_i <= C (period) or e_i - S_0 <= C (makespan).

So the minimum C of the MILP, or the ceiling if that is lower, is a lower bound. Times are in units
of the ceiling; the solver's tolerance is subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from math import isfinite
from typing import Any

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import IntArray
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.units import amount, counted, duration

from ..core.bound import Bound
from ..core.linear_instance import LinearInstance
from ..core.overlap_relaxation import least_times
from ..core.relaxations import unfused
from ..core.stopping import POLL, Budget
from ..core.tolerances import counts_within
from .memory_time import Ways, memory_times
from .stage_moments import StageMoments

TOLERANCE = 5e-7  # relative; the solver's own tolerances are at most a hundredth of it
SCALE = 1024.0
"""The ceiling in units of the objective that the solver minimizes.

If an LP is doubtful, SCIP solves it again with a thousandth of its dual tolerance. SoPlex supports
no tolerance below 1e-10 and prints a warning for one, so the dual tolerance is 1e-7. With an
objective of this scale, that is 1e-10 of the ceiling.
"""
SECONDS = 3.0  # time limit of a solve
REMAT_WORDS = (
    "what microbatches hold has room, or they are recomputed or copied, between four moments on "
    "each stage, as a small MILP"
)
# work in simulated ops: of a node of the search, times stages squared; of a simplex iteration
NODE, ITERATION = 2000, 5000


def remat_relaxation(problem: Problem, ceiling: float, budget: Budget) -> Bound | None:
    """The lower bound that the MILP of this module proves for ``problem``.

    ``ceiling``: the cost of a known schedule; the bound is at most that. ``budget``: limits the
    solver. Returns None if some rank has several stages.
    """
    bare = least_times(unfused(problem))
    linear, costs = LinearInstance.of(bare), Costs.of(bare)
    if linear is None:
        return None
    ways = [Ways.of(costs, stage).within(ceiling) for stage in range(linear.stages)]
    value, stages = _solved(linear, problem.objective, ceiling, budget, ways)
    if not stages:
        return Bound(value, "remat-relaxation", REMAT_WORDS)
    spans = [stage.ends.solution_value() - stage.starts.solution_value() for stage in stages]
    i = int(np.argmax(spans))
    chosen = np.array(stages[i].found())

    def numbers() -> list[str]:
        limit = linear.limit + linear.m_b
        fit = counts_within(limit, linear.m_b, linear.microbatches).astype(np.int64)
        roomier = linear._replace(limit=limit, capacity=fit)
        then = _solved(roomier, problem.objective, ceiling, Budget(SECONDS), ways)[0]
        return [
            *_binding(linear, i, chosen, ways[i]),
            "with memory for one microbatch more on each rank the same argument gives "
            f"{duration(min(value, then))}",
        ]

    return Bound(value, "remat-relaxation", REMAT_WORDS, int(linear.ranks[i]), numbers)


def _binding(linear: LinearInstance, i: int, chosen: IntArray, ways: Ways) -> list[str]:
    """The lines of a bound's explanation about stage ``i``, whose rank limits the cost.

    They show how many microbatches the rank has memory for, and how many of its microbatches are
    recomputed and offloaded. ``chosen``: for each choice in ``ways``, the number of microbatches
    with this choice in the solution.
    """

    copied = int(chosen[ways.wire > 0].sum())
    again, room = int(chosen[1:].sum()) - copied, int(linear.capacity[i])
    return [
        f"rank {linear.ranks[i]} computes for {duration(linear.work[i])}; its limit of "
        f"{amount(linear.limit[i])} has room for {counted(room, 'microbatch')} at once",
        f"at the bound {again} of its {linear.microbatches} are recomputed, for "
        f"{duration(float(ways.again @ chosen))}, and {copied} offloaded; else it idles",
    ]


def _solved(
    linear: LinearInstance,
    objective: Objective,
    ceiling: float,
    budget: Budget,
    ways: Sequence[Ways],
) -> tuple[float, list[StageMoments]]:
    """Solve the MILP. Returns a lower bound on the cost, and the variables of each stage.

    The variables have the values of the solution; the list of them is empty if no solution was
    found. ``ceiling``: the cost of a known schedule. ``ways``: for each stage, the choices for a
    microbatch.
    """
    solver = new_solver()
    if solver is None or ceiling <= 0.0:
        return 0.0, []
    cost = solver.NumVar(0.0, 1.0, "C")
    stages = [StageMoments(solver, linear, i, ceiling, way) for i, way in enumerate(ways)]
    for i, stage in enumerate(stages):
        stage.keep_moments_apart()
        stage.fit(memory_times(linear, i, ways[i], ceiling))
        start = stage.starts if objective is Objective.PERIOD else stages[0].starts
        solver.Add(cost >= stage.ends - start)
        if i + 1 < linear.stages:
            stage.pass_on_to(stages[i + 1])
    value, solved = least_of(solver, cost, budget, linear.stages)
    return value * ceiling, stages if solved else []


def new_solver() -> Any:
    """Create a SCIP solver. Returns None if this build of OR-Tools does not contain SCIP."""
    from ortools.linear_solver import pywraplp

    return pywraplp.Solver.CreateSolver("SCIP")


def least_of(solver: Any, cost: Any, budget: Budget, size: int) -> tuple[float, bool]:
    """Minimize ``cost``, a variable in units of the ceiling; also return whether that is solved.

    The first result is a lower bound on ``cost``, at most 1: 1 minus the tolerance if the model is
    infeasible, and 0 if nothing was proven. The second is whether a solution was found. ``size``:
    the number of stages or ranks; a node of the search takes time proportional to its square.
    """
    solver.Minimize(SCALE * cost)
    status = _solve(solver, _parameters(solver, size, budget), budget)
    budget.work.spend(ITERATION * solver.iterations())
    if status == solver.INFEASIBLE:  # no schedule is cheaper than the ceiling
        return 1 - TOLERANCE, False
    if status not in (solver.OPTIMAL, solver.FEASIBLE):
        return 0.0, False
    return min(1.0, float(solver.Objective().BestBound()) / SCALE) * (1 - TOLERANCE), True


def _parameters(solver: Any, size: int, budget: Budget) -> Any:
    """Set limits and SCIP's own parameters on ``solver``, and return the MPSolverParameters.

    ``size``: the number of stages or ranks. It determines how many nodes of the search ``budget``
    allows.
    """
    from ortools.linear_solver import pywraplp

    # constraints must hold far more precisely than TOLERANCE, and epsilon must be smaller still, or
    # presolving declares feasible models infeasible; Ctrl-C is left to Python
    parameters = "numerics/epsilon = 1e-11\nnumerics/feastol = 1e-9\nnumerics/dualfeastol = 1e-7\n"
    parameters += "misc/catchctrlc = FALSE\n"
    if isfinite(budget.work.ops):
        parameters += f"limits/totalnodes = {1 + int(budget.work.ops / (NODE * size**2))}\n"
    if isfinite(budget.time.left):
        solver.SetTimeLimit(1 + int(1000 * budget.time.left))  # 0 would mean no limit
    solver.SetSolverSpecificParametersAsString(parameters)
    exact = pywraplp.MPSolverParameters()
    exact.SetDoubleParam(exact.RELATIVE_MIP_GAP, 0.0)
    return exact


def _solve(solver: Any, parameters: Any, budget: Budget) -> int:
    """Run SCIP until it ends or ``budget`` is interrupted, and return SCIP's status.

    SCIP runs in a thread of its own, so that the caller's thread can check for the interrupt.
    """
    with ThreadPoolExecutor(1) as thread:
        solving = thread.submit(solver.Solve, parameters)
        try:
            while not wait([solving], POLL).done and not budget.interrupt():
                pass
        finally:
            # repeatedly, as SCIP ignores an interrupt that comes before it has begun
            while not wait([solving], POLL).done:
                solver.InterruptSolve()
        return int(solving.result())
