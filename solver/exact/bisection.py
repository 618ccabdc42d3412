"""Proofs and schedules for small memory by bisection over target costs, with CP-SAT.

To *refute* a target is to prove that no schedule costs at most that. A target far below the best
cost is refuted quickly, one just below it may take long. So targets rise from the lower bound to
the best cost, or to the lowest target that was not decided in time. The models have no objective:
either a target is refuted, or any solution is a better schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import split_backwards
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..bounds.low_memory.activation_slots import slot_turns, slots_limit_rate
from ..core.bound import Bound
from ..core.incumbent import Incumbent
from ..core.linear_instance import LinearInstance
from ..core.methods import Method
from ..core.options import MOST_SEEDS, Order
from ..core.relaxations import unfused
from ..core.schedule_cost import objective_cost
from ..core.stopping import OPS_A_SECOND, Budget
from ..core.streams import number_of_ops
from ..core.worker_threads import Pieces
from .cp_sat_thread import CpSatThread, Read
from .first_starts import valid
from .instance import B, F, Instance, Learned, OpClass, all_orders
from .model import PARAMETERS, OrderModel

LITERALS, OPS = 20_000, 25_000  # maximum numbers of undecided pairs, and of ops, in a model
UNLIKE_LITERALS, UNLIKE_SHARE = 4_000, 0.75  # LITERALS and SHARE for unlike microbatches
STEPS = (0.3, 0.5, 0.7, 1.0)  # targets, from bound (0) to cost (1); lower ones take less time
FIRST = 0.1  # first target if a rank has several stages
SHARE = 0.4  # share of the time left for a target; all of it for the last one
PATIENCE = 3  # undecided targets in a row after which the rest of the time goes to searches
CLOSE = 1e-3  # relative distance of bound and target below which the best cost is the target
JUST_BELOW = 5e-7  # relative distance of the highest target below the best cost

Parameters = Mapping[str, object]

_WORDS = "few orders are possible: all orders of F's and B's are searched"


def bisect(best: Incumbent, seed: int, learned: Sequence[Learned] = ()) -> Pieces:
    """Refute rising target costs until bound and cost are equal, or too many stay undecided.

    To refute a target is to prove that no schedule costs at most that; CP-SAT may find such a
    schedule instead. ``learned``: known precedences, which become constraints. Does nothing if the
    model would be too large, or if each stage has a rank of its own and memory does not limit the
    rate of microbatches.
    """
    linear = LinearInstance.of(best.problem)
    small = number_of_ops(best.problem) <= OPS
    if not small or (linear and not slots_limit_rate(linear)):
        return
    instance = all_orders(best.problem, learned=[*learned, *_slot_turns(best.problem)])
    if instance.literals > LITERALS:
        return
    above = best.cost  # the lowest cost that was found, or not decided
    steps = STEPS if linear else (FIRST, *STEPS)
    answers = unanswered = 0
    while unanswered < PATIENCE and not best.over():
        low, high = best.bound.value, best.cost * (1 - JUST_BELOW)
        target, share = low + steps[min(answers, len(steps) - 1)] * (above - low), SHARE
        if target >= min(above, high) or target - low < CLOSE * best.cost:
            target, share = high, 1.0
        before = best.bound.value, best.cost
        answered = ask(best, instance, target, best.budget(share), _parameters(seed, unanswered))
        if answered and before == (best.bound.value, best.cost):
            return  # the precision of ticks is reached
        answers, unanswered = (answers + 1, 0) if answered else (0, unanswered + 1)
        above = min(best.cost, above if answered else target)
        yield


def _slot_turns(problem: Problem) -> Iterator[Learned]:
    """Yield precedences: the minimum time from each B to the F's that need the memory it frees.

    Yields nothing if some rank has several stages.
    """
    linear = LinearInstance.of(unfused(problem))
    if linear is not None:
        near, _ = slot_turns(linear)
        for (s, q), way in np.ndenumerate(near):
            yield OpClass(B, s), OpClass(F, s), int(linear.capacity[s]) + q, way


def climb(best: Incumbent, seed: int) -> Pieces:
    """Refute rising target costs for unlike microbatches, as :func:`bisect` does for equal ones.

    The first model contains only a few microbatches, those with the largest product of memory and
    time; later models contain more. The generator yields after each undecided attempt at a target,
    so that the caller may run something else, and ends after PATIENCE undecided attempts at one
    target.
    """
    for instance, every in _subsets(best.problem):
        low = best.bound.value
        for step in (FIRST, *STEPS):
            for tries in range(PATIENCE):
                if best.over():
                    return
                target = min(low + step * (best.cost - low), best.cost * (1 - JUST_BELOW))
                if target <= best.bound.value:
                    break
                budget = best.budget(UNLIKE_SHARE)
                if ask(best, instance, target, budget, _parameters(seed, tries)):
                    break
                yield
            else:
                return
            if best.bound.value < target and not every:
                break  # this subset has a schedule of this cost


def _subsets(problem: Problem) -> list[tuple[Instance, bool]]:
    """Return instances with more and more of the unlike microbatches.

    Each is paired with True if it contains all microbatches, otherwise False. Microbatches are
    added by their product of memory and time, the largest first. Instances whose models would be
    too large are left out.
    """
    costs, numbers, n = Costs.of(problem), [problem.microbatches], 3
    while n < problem.microbatches:
        numbers, n = [*numbers, n], n + n // 2
    areas = costs.m_b.sum(axis=0) * costs.durations[:2].sum(axis=(0, 1))
    largest, found = np.argsort(-areas, kind="stable").tolist(), []
    for number in sorted(numbers):
        instance = all_orders(problem, streams=[[j] for j in sorted(largest[:number])])
        if instance.literals > UNLIKE_LITERALS:
            break
        found.append((instance, number == problem.microbatches))
    return found


def _parameters(seed: int, tries: int) -> Parameters:
    """Return CP-SAT's parameters, by name, for the next attempt at a target.

    ``tries``: the number of undecided attempts since the last decided one. If it is even, the
    parameters are :data:`.model.PARAMETERS`; if it is odd, CP-SAT's defaults, with which it
    presolves the model.
    """
    return {"random_seed": seed % MOST_SEEDS, **({} if tries % 2 else PARAMETERS)}


def ask(
    best: Incumbent, instance: Instance, target: float, budget: Budget, parameters: Parameters
) -> bool:
    """Search for schedules that cost at most ``target``; return whether the target was decided.

    It is decided if a solution was found, or if it is proven that there is none; otherwise the
    limit ``budget`` was reached. Schedules found are offered to ``best``. If there is none, the
    bound of ``best`` is raised.
    """
    model = OrderModel(instance, best.bound.value, target)
    search = find_order(best, model, budget, parameters)
    if search.refuted:
        best.raise_bound(Bound(model.above, "interleaving", _WORDS))
    return best.closed or search.refuted or search.status == cp_model.OPTIMAL


def find_order(
    best: Incumbent,
    model: OrderModel,
    budget: Budget,
    parameters: Parameters,
    method: Method = Method.CP_SAT,
) -> CpSatThread[Order]:
    """Run CP-SAT on ``model`` with :func:`run`, and offer the order of each solution to ``best``.

    ``method``: the method in the reports of these orders. Returns the CP-SAT thread after its end.
    """

    def offer(order: Order) -> None:
        if (cost := _cost(best, order)) is not None:
            best.offer(order, method, cost)

    return run(best, model, budget, parameters, read=model.order, take=offer)


def run(
    best: Incumbent,
    model: OrderModel,
    budget: Budget,
    parameters: Parameters,
    *,
    read: Callable[[cp_model.CpSolverSolutionCallback], Read],
    take: Callable[[Read], object],
) -> CpSatThread[Read]:
    """Run CP-SAT on ``model`` until it ends, ``budget`` is used up or ``best`` is interrupted.

    ``read`` converts each solution in CP-SAT's thread; ``take`` is called with each converted
    solution in the caller's thread. Returns the CP-SAT thread after its end. The thread's ``work``,
    converted to simulated ops, is added to the work of ``best``.
    """
    limits = {
        "max_time_in_seconds": budget.time.left,
        "max_deterministic_time": budget.work.ops / OPS_A_SECOND / model.unit,
        "num_workers": 1,
    }
    with CpSatThread(model.cp, read, **limits, **parameters) as search:
        while (found := search.next(best.interrupted)) is not None:
            if not isinstance(found, float):  # a bound
                take(found)
    search.work *= model.unit * OPS_A_SECOND
    best.work.spend(search.work)
    return search


def _cost(best: Incumbent, order: Order) -> float | None:
    """The cost of ``order``, or None if it cannot be used.

    That is, if it is invalid, exceeds a memory limit, or lacks ops of some microbatches.
    """
    ops = sum(len(split_backwards(row)) for row in order)
    if ops < number_of_ops(best.problem):
        return None
    found = valid(Schedule(best.problem, order))
    return None if found is None else objective_cost(found)
