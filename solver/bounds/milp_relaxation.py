"""A lower bound from a small MILP: four moments on each stage, and what must happen between them.

Stronger than the bounds in closed form where stages differ, as it weighs the head of one stage
against the tail of another. It has a handful of integers a stage, whatever M is.

Moments of stage i: S_i its first op starts (an F), y_i its first B starts, t_i its last F starts,
V_i its last B ends, and e_i its last op ends (a W)::

    S_i ── n_i F's ── y_i ── F's, B's, W's ── t_i ── one F, a_i + 1 B's, r_i W's ── V_i ── W's ──
    e_i

Proof that every schedule of cost C below the ceiling gives a solution. Take n_i F's before the
first B, and at t_i: a_i microbatches with B to come and q_i with W alone, which the memory holds
next to the last F's own. What the diagram names has to fit between its moments:

    y_i >= S_i + n_i f_i                                                    n_i <= capacity
    t_i >= y_i + (M - 1 - n_i) f_i + (M - 1 - a_i) b_i + (M - 1 - a_i - q_i) w_i   where n_i < M
    V_i >= t_i + f_i + (a_i + 1) b_i + r_i w_i                              r_i <= a_i + q_i
    e_i >= V_i + (a_i + q_i + 1 - r_i) w_i
    (1 + a_i) M_B + q_i M_W <= limit

(of the a_i + 1 W's whose B's end after t_i, the last B's comes after V_i). Where n_i = M (z_i = 1)
all B's are to come at t_i; in either case

    V_i >= y_i + (M - n_i) f_i + M b_i + (M - 1 - a_i - q_i + r_i) w_i.

The first F, the last F, the first B and the last B of a stage each passed the next one, or goes on
to it:

    S_(i+1) >= S_i + f_i + down_i          y_i >= y_(i+1) + b_(i+1) + up_i
    t_(i+1) >= t_i + f_i + down_i          V_i >= V_(i+1) + up_i + b_i
    y_i >= S_i + R_i                       V_i >= t_i + R_i + b_i

and e_i - S_i <= C (period) or e_i - S_0 <= C (makespan). So the least C of the MILP, or the ceiling
where that is less, is a bound. Times are in units of the ceiling; the solver's tolerance is
taken off.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from math import isfinite
from typing import Any

from pipeloom.ir.model.problem import Objective

from ..core.linear_instance import LinearInstance
from ..core.stopping import Budget

TOLERANCE = 5e-7  # relative; the solver's own are a hundredth of it or less
MOST_TIME = 2.0
"""In units of the ceiling: stage 0 starts at 0 and runs its last B, which comes after every stage's
first op, within the ceiling; every stage ends within a ceiling of its first op."""
POLL = 0.05  # seconds between two looks at whether to stop
NODE, ITERATION = 2000, 5000  # ops that a node (a stage squared) and a step of the simplex count


def relaxation(
    linear: LinearInstance, objective: Objective, ceiling: float, budget: Budget | None = None
) -> float:
    """A bound on the cost of every schedule; ``ceiling`` is the cost of one, and at least that."""
    from ortools.linear_solver import pywraplp

    budget = budget or Budget()
    solver = pywraplp.Solver.CreateSolver("SCIP")
    if solver is None or ceiling <= 0.0:  # SCIP is left out of some builds of ortools
        return 0.0
    add_moments(solver, linear, objective, ceiling)
    # constraints are kept far better than TOLERANCE asks for; Ctrl-C is Python's
    parameters = "numerics/feastol = 1e-9\nnumerics/dualfeastol = 1e-9\nmisc/catchctrlc = FALSE\n"
    if isfinite(budget.work.ops):
        parameters += (
            f"limits/totalnodes = {1 + int(budget.work.ops / (NODE * linear.stages**2))}\n"
        )
    if isfinite(budget.time.left):
        solver.SetTimeLimit(1 + int(1000 * budget.time.left))  # 0 would mean none
    solver.SetSolverSpecificParametersAsString(parameters)
    exact = pywraplp.MPSolverParameters()
    exact.SetDoubleParam(exact.RELATIVE_MIP_GAP, 0.0)
    status = _solve(solver, exact, budget)
    budget.work.spend(ITERATION * solver.iterations())
    if status == pywraplp.Solver.INFEASIBLE:  # no schedule is cheaper than the ceiling
        return ceiling * (1 - TOLERANCE)
    if status not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return 0.0
    return min(1.0, float(solver.Objective().BestBound())) * ceiling * (1 - TOLERANCE)


def _solve(solver: Any, parameters: Any, budget: Budget) -> int:
    """SCIP's status; solves in a thread of its own, as it looks at no flag."""
    with ThreadPoolExecutor(1) as thread:
        solving = thread.submit(solver.Solve, parameters)
        try:
            while not wait([solving], POLL).done and not budget.interrupt():
                pass
        finally:
            while not wait([solving], POLL).done:  # an interrupt before SCIP has begun is lost
                solver.InterruptSolve()
        return int(solving.result())


class StageMoments:
    """The moments and counts of one stage, and the constraints on them, each with its name."""

    def __init__(self, solver: Any, linear: LinearInstance, i: int, unit: float) -> None:
        self.solver, self.stage, self.m = solver, i, linear.microbatches
        times = (linear.f, linear.b, linear.w, linear.down, linear.up, linear.round_trip)
        self.f, self.b, self.w, self.down, self.up, self.round_trip = (
            float(time[i]) / unit for time in times
        )
        self.capacity = int(linear.capacity[i])
        most = 2.0 * linear.microbatches * float(linear.m_b[i])  # more is as good as no limit
        limit = min(float(linear.limit[i]), most) or 1.0
        self.m_b, self.m_w = float(linear.m_b[i]) / limit, float(linear.m_w[i]) / limit
        self.starts, self.first_b, self.last_f, self.last_b, self.ends = (
            solver.NumVar(0.0, MOST_TIME, "") for _ in range(5)
        )
        self.ahead = solver.IntVar(1, self.capacity, f"n {i}")
        self.pending = solver.IntVar(0, self.capacity - 1, f"a {i}")
        self.weights = solver.IntVar(0, self.m - 1, f"q {i}")
        self.early = solver.IntVar(0, self.m - 1, f"r {i}")
        self.all_ahead = solver.IntVar(0, int(self.capacity >= self.m), f"z {i}")

    @property
    def counts(self) -> tuple[Any, ...]:
        """The variables that are whole numbers."""
        return self.ahead, self.pending, self.weights, self.early, self.all_ahead

    def _add(self, name: str, constraint: Any) -> None:
        self.solver.Add(constraint, f"{name} {self.stage}")

    def keep_moments_apart(self) -> None:
        m, f, b, w, add = self.m, self.f, self.b, self.w, self._add
        done = m - 1 - self.pending  # B's before the last F
        add("first F's", self.first_b >= self.starts + f * self.ahead)
        add("first round trip", self.first_b >= self.starts + self.round_trip)
        add("all F's", self.last_f >= self.starts + f * (m - 1))
        # a span is at most the ceiling, 1 in our unit, so z lifts the constraint
        between = f * (m - 1 - self.ahead) + b * done + w * (done - self.weights)
        add("between", self.last_f >= self.first_b + between - 2 * self.all_ahead)
        add("F's left", self.ahead <= m - 1 + self.all_ahead)
        add("B's left", self.pending >= (m - 1) * self.all_ahead)
        add("microbatches", done - self.weights >= 0)
        add("W's", self.early <= self.pending + self.weights)
        add("memory", self.m_b * (1 + self.pending) + self.m_w * self.weights <= 1.0)
        add(
            "last B's",
            self.last_b >= self.last_f + f + b * (self.pending + 1) + w * self.early,
        )
        add(
            "all B's",
            self.last_b
            >= self.first_b + f * (m - self.ahead) + b * m + w * (done - self.weights + self.early),
        )
        add("last round trip", self.last_b >= self.last_f + self.round_trip + b)
        left = self.pending + self.weights + 1 - self.early
        add("last W's", self.ends >= self.last_b + w * left)

    def pass_on_to(self, later: StageMoments) -> None:
        add = self._add
        add("first F on", later.starts >= self.starts + self.f + self.down)
        add("last F on", later.last_f >= self.last_f + self.f + self.down)
        add("first B back", self.first_b >= later.first_b + later.b + self.up)
        add("last B back", self.last_b >= later.last_b + self.up + self.b)


def add_moments(
    solver: Any, linear: LinearInstance, objective: Objective, unit: float
) -> tuple[Any, list[StageMoments]]:
    """The cost, which ``solver`` minimises, and the moments of all stages, times in ``unit``."""
    cost = solver.NumVar(0.0, 1.0, "C")
    stages = [StageMoments(solver, linear, i, unit) for i in range(linear.stages)]
    for i, stage in enumerate(stages):
        stage.keep_moments_apart()
        start = stage.starts if objective is Objective.PERIOD else stages[0].starts
        solver.Add(cost >= stage.ends - start, f"cost {i}")
        if i + 1 < linear.stages:
            stage.pass_on_to(stages[i + 1])
    solver.Minimize(cost)
    return cost, stages
