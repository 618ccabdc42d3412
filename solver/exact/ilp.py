"""The exact solver ``milp``: the integer program of the Zero Bubble paper's appendix, with CBC.

The paper's symbols: op i ends at E(i) and takes T(i); O(i, k) is 1 if i runs before k, where i and
k are two ops of one rank whose order is not known; the *inf* of the paper's big-M constraints is
the smallest constant that suffices. The constraints, with the makespan or the period as the
objective:

- *waits* (dependencies, and known orders): E(k) - T(k) >= E(i) - T(i) + the minimum time between
  the starts;
- *one op at a time*: E(k) >= E(i) + T(k) - (1 - O(i, k)) inf;
- *memory* at every F k: the sum of dM(i) O(i, k) over all i, plus dM(k), is at most the limit;
- *packing* (not in the paper): before and after each op, there is time for all ops that run before
  and after it on its rank. Without it the LP relaxation only proves the work; with it, often the
  optimum;
- *implications* (not in the paper): if i runs before k, i runs before what must follow k;
- *first starts* (:mod:`.first_starts`).

CBC computes in floating point. A binary variable may be off by ``_INTEGER``, which lets a big-M
constraint slip by ``_INTEGER`` times its inf (at most the horizon), and any constraint may be off
by ``_PRIMAL``. Along a path of N ops this adds up to at most N (``_INTEGER`` horizon +
``_PRIMAL``), which is subtracted from CBC's bound, together with the precision of its output. If
all costs are whole ticks, the difference is rounded up. The bound is the one that CBC reports at
its end; if it reports none, nothing is proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pulp

from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.schedule import Schedule

from ..core.options import MOST_SEEDS, SolveOptions
from ..core.schedule_cost import objective_cost
from ..core.stopping import TimeLimit
from ..core.tolerances import CLOSED, ROUNDING
from .cbc import Outcome, run_cbc
from .first_starts import earliest, starts_of, to_schedule
from .instance import F, all_positions, undecided
from .integer_time import Ticks

NODE = 50  # work of a node of the search tree per pair of ops, in simulated ops
_COST = 1e4  # the scaled horizon: CBC prints three decimals of a bound
_PRINTED = 1e-3  # precision of the bound that CBC prints
_INTEGER = 1e-9  # CBC's tolerance of an integer variable
_PRIMAL = 1e-8  # CBC's tolerance of a constraint


def solve(
    incumbent: Schedule,
    lower_bound: float,
    options: SolveOptions,
    offer: Callable[[Schedule], object],
    raise_to: Callable[[float], object],
) -> bool:
    """Solve the integer program with CBC.

    Arguments and result are those of :data:`pipeloom.solver.exact.Backend`. ``offer`` and
    ``raise_to`` are called at most once, after CBC has ended.
    """
    time, program = TimeLimit(options.time_limit), _Program(incumbent, lower_bound)
    node = NODE * len(program.T) ** 2
    outcome = run_cbc(
        program.lp,
        start=program.start,
        seconds=max(time.left, 0.1),
        options=_options(options, node),
        should_stop=options.should_stop,
    )
    found = program.schedule(outcome) if outcome.values else None
    if found is not None:
        offer(found)
    raise_to(program.proves(outcome))
    return outcome.complete


def _options(options: SolveOptions, node: float) -> dict[str, float | str]:
    seed = 1 + options.seed % (MOST_SEEDS // 2)  # 0 would mean the time of day
    return {
        **({} if math.isinf(options.ops) else {"maxNodes": 1 + int(options.ops / node)}),
        "integerTolerance": _INTEGER,
        "primalTolerance": _PRIMAL,
        "randomSeed": seed,
        "randomCbcSeed": seed,
        "ratioGap": 0,
        "allowableGap": 0,
        "preprocess": "off",  # it finds little here, and the search then takes twice as long
    }


class _Program:
    """An integer program, for PuLP, whose solutions are the orders of the incumbent's problem.

    Times are multiplied by ``scale``. Entry i of each list is about op number i of the instance.
    ``start``: the values of variables in the incumbent, by name. ``known``: a known lower bound on
    the cost.
    """

    def __init__(self, incumbent: Schedule, known: float) -> None:
        problem = self.problem = incumbent.problem
        self.instance = all_positions(problem)
        self.waits, takes = sorted(self.instance.waits), self.instance.takes
        rank_ops = self.instance.rank_ops
        cost = objective_cost(incumbent) * (1 + CLOSED)
        times = 2 if problem.objective is Objective.PERIOD else 1  # see :mod:`.model`
        horizon = min(self.instance.horizon * (1 + CLOSED), times * cost)
        self.scale = scale = _COST / horizon if horizon > 0 else 1.0
        self.horizon, head, tail = horizon * scale, np.zeros(len(takes)), takes.copy()
        for i, k, gap in self.waits:
            head[k] = max(head[k], head[i] + gap)
        for i, k, gap in reversed(self.waits):
            tail[i] = max(tail[i], gap + tail[k])
        self.T = takes * scale
        self.earliest = self.T + head * scale
        self.latest = np.maximum(self.earliest, self.T + (horizon - tail) * scale)
        lp = self.lp = pulp.LpProblem("schedule", pulp.LpMinimize)
        self.cost = lp.add_variable("cost", known * scale * (1 - ROUNDING), cost * scale)
        ends = enumerate(zip(self.earliest, self.latest, strict=True))
        self.E = [lp.add_variable(f"E{i}", low, high) for i, (low, high) in ends]
        self.O: dict[tuple[int, int], pulp.LpVariable] = {}
        self.ranks = [(ops.tolist(), self.instance.known(r)) for r, ops in enumerate(rank_ops)]
        self._place = {i: n for ops, _ in self.ranks for n, i in enumerate(ops)}
        lp += self.cost
        for constrain in CONSTRAINTS:
            constrain(self)
        self.start = self._start(incumbent)

    def before(self, i: int, k: int) -> pulp.LpAffineExpression | int:
        """An expression that is 1 if op i runs before op k, and 0 if it runs after op k.

        Both ops are on the same rank. If their order is known, the result is the integer 0 or 1.
        """
        if (i, k) in self.O:
            return self.O[i, k] + 0
        known = self.ranks[self.instance.rank[i]][1]
        return 1 - self.O[k, i] if (k, i) in self.O else int(known[self._place[i], self._place[k]])

    def follows(self, k: int, i: int, gap: float, excuse: pulp.LpAffineExpression) -> None:
        """Add a constraint: op k ends at least ``gap`` after op i ends, unless ``excuse`` is 1.

        ``excuse``: an expression that is 0 or 1.
        """
        inf = self.latest[i] + gap - self.earliest[k]
        if inf > 0:
            self.lp += self.E[k] >= self.E[i] + gap - inf * excuse

    def _start(self, incumbent: Schedule) -> dict[str, float]:
        """The values of the program's variables in the incumbent, by name.

        Variables of first starts are left out; CBC finds their values itself.
        """
        ends = (starts_of(self.instance, incumbent) + self.instance.takes) * self.scale
        place = {i: n for n, i in enumerate(np.lexsort((self.T > 0, ends)).tolist())}
        orders = {binary.name: float(place[i] < place[k]) for (i, k), binary in self.O.items()}
        times = {end.name: time for end, time in zip(self.E, ends.tolist(), strict=True)}
        return {"cost": objective_cost(incumbent) * self.scale, **times, **orders}

    def proves(self, outcome: Outcome) -> float:
        """The lower bound on the cost that CBC's result proves, or 0 if it proves none."""
        if outcome.infeasible or outcome.bound is None:  # infeasible only because of a tolerance
            return 0.0
        slip = len(self.T) * (_INTEGER * self.horizon + _PRIMAL) + _PRINTED
        proven = (outcome.bound - slip) / self.scale
        ticks = Ticks.of(np.unique(self.instance.times).tolist(), self.instance.horizon)
        return ticks.least(proven) / ticks.per_unit if ticks.exact else proven

    def schedule(self, outcome: Outcome) -> Schedule | None:
        """Convert CBC's solution to a schedule; None if :func:`.to_schedule` finds no valid one."""
        value, packed = outcome.values, self.instance.packed
        start = (np.array([value[end.name] for end in self.E]) - self.T) / self.scale
        before = np.zeros(len(self.T))
        for ops, known in self.ranks:
            before[ops] = known.sum(axis=0)
        for (i, k), binary in self.O.items():
            before[k if value[binary.name] > 0.5 else i] += 1
        order = tuple(packed[sorted(ops, key=before.__getitem__)] for ops, _ in self.ranks)
        return to_schedule(Schedule(self.problem, order), self.instance, start, 1e-3 / self.scale)


def _waits(program: _Program) -> None:
    for i, k, gap in program.waits:
        delay = gap * program.scale - program.T[i] + program.T[k]
        program.lp += program.E[k] >= program.E[i] + delay


def _one_op_at_a_time(program: _Program) -> None:
    """Add big-M constraints with binary variables so that no two ops of a rank overlap.

    Further constraints exclude cyclic orders of ops that take no time.
    """
    takes = program.T
    for ops, known in program.ranks:
        for n, m in np.argwhere(np.triu(undecided(known))).tolist():
            i, k = ops[n], ops[m]
            binary = program.O[i, k] = program.lp.add_variable(f"O{i}_{k}", cat=pulp.LpBinary)
            program.follows(k, i, takes[k], 1 - binary)
            program.follows(i, k, takes[i], binary + 0)
        for cycle in permutations((i for i in ops if takes[i] == 0), 3):
            if cycle[0] == min(cycle):
                a, b, c = cycle
                orders = program.before(a, b), program.before(b, c), program.before(c, a)
                program.lp += pulp.lpSum(orders) <= 2


def _implications(program: _Program) -> None:
    after: dict[int, list[int]] = {}
    for k, later, _ in program.waits:
        if program.instance.rank[k] == program.instance.rank[later]:
            after.setdefault(k, []).append(later)
    for i, k in [pair for a, b in program.O for pair in ((a, b), (b, a))]:
        for later in after.get(k, ()):
            if isinstance(follows := program.before(i, later), pulp.LpAffineExpression):
                program.lp += program.before(i, k) <= follows


def _packing(program: _Program) -> None:
    lp, end, takes = program.lp, program.E, program.T
    period = program.problem.objective is Objective.PERIOD
    for ops, _ in program.ranks:
        for i in ops:  # the first op of a rank is the F of microbatch 0 on the rank's lowest stage
            begins = end[ops[0]] - takes[ops[0]]
            others = [k for k in ops if k != i]
            earlier = pulp.lpSum(takes[k] * program.before(k, i) for k in others)
            later = pulp.lpSum(takes[k] * program.before(i, k) for k in others)
            lp += end[i] - takes[i] >= begins + earlier
            lp += program.cost + (begins if period else 0) >= end[i] + later


def _memory(program: _Program) -> None:
    for rank, rows in program.instance.memory.items():
        ops, _ = program.ranks[rank]
        for change, limit in rows:
            unit = max(float(np.abs(change).max()), limit) / 100
            amounts = dict(zip(ops, (change / unit).tolist(), strict=True))
            for k in (i for i in ops if program.instance.kind[i] == F):
                others = pulp.lpSum(amounts[i] * program.before(i, k) for i in ops if i != k)
                held = others + amounts[k]
                if not held.isNumericalConstant():
                    program.lp += held <= limit / unit


def _first_starts(program: _Program) -> None:
    lp, end, takes = program.lp, program.E, program.T
    for n, rule in enumerate(earliest(program.problem, program.instance)):
        k = rule.op
        if not rule.after:
            lp += end[k] <= takes[k]
            continue
        reasons = []
        for i, delay in rule.after:
            reason = lp.add_variable(f"r{n}_{i}", cat=pulp.LpBinary)
            reasons.append(reason)
            gap = delay * program.scale + takes[k]
            program.follows(k, i, gap, 1 - reason)
            inf = max(0.0, program.latest[k] - program.earliest[i] - gap)
            lp += end[k] <= end[i] + gap + inf * (1 - reason)
        late = [program.before(b, k) for b in rule.unless]
        lp += pulp.lpSum(reasons) + pulp.lpSum(late) >= 1


CONSTRAINTS: tuple[Callable[[_Program], None], ...]
CONSTRAINTS = (_one_op_at_a_time, _waits, _implications, _packing, _memory, _first_starts)
