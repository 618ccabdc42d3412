"""Proofs and schedules for small memory by bisection over target costs.

A target far below the best cost is refuted quickly, one just below it may take long. So targets
rise from the lower bound to the best cost, or to the lowest target that was not decided in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from ortools.sat.python import cp_model

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.ops import split_backwards
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ...bounds.low_memory.activation_slots import slots_limit_rate
from ...core.bound import Bound
from ...core.incumbent import Incumbent
from ...core.linear_instance import LinearInstance
from ...core.methods import Method
from ...core.options import Order
from ...core.schedule_cost import within_memory
from ...core.stopping import OPS_A_SECOND, Budget
from ...core.worker_threads import Pieces
from ..cp_sat_thread import CpSatThread
from .general_interleaving import Apart, GeneralInterleaving
from .general_interleaving import literals as general_literals
from .interleaving import Interleaving
from .unlike_interleaving import UnlikeInterleaving
from .unlike_interleaving import literals as literals_of_unlike

LITERALS, GENERAL_LITERALS = 12_000, 20_000  # most open pairs in a model
UNLIKE_LITERALS, UNLIKE_SHARE = 4_000, 0.75  # for unlike microbatches
OPS = 25_000  # most ops in a model
STEPS = (0.3, 0.5, 0.7, 1.0)  # targets, from bound (0) to cost (1); low ones are refuted sooner
FIRST = 0.1  # first target if a rank has several stages
SHARE = 0.4  # share of the time left for a target; all of it for the last one
PATIENCE = 3  # undecided targets after which the rest of the time goes to searches
CLOSE = 1e-3  # relative distance of bound and target from which on the best cost is the target
JUST_BELOW = 5e-7  # relative distance of the highest target to the best cost, which counts as equal

_WORDS = "few orders are possible: all orders of F's and B's are searched"


class OrderModel(Protocol):
    """A CP-SAT model of the orders of schedules between two costs.

    ``unit``: approximate seconds per unit of CP-SAT's deterministic time. ``parameters``: CP-SAT
    parameters that suit the model.
    """

    cp: cp_model.CpModel

    @property
    def unit(self) -> float: ...

    @property
    def parameters(self) -> Mapping[str, object]: ...

    def orders(self, solution: cp_model.CpSolverSolutionCallback) -> Order: ...

    def proves(self, bound: float) -> float: ...


MakeModel = Callable[[float, float], OrderModel]
"""Creates the model for schedules whose cost is from the first to the second number."""


def bisect(best: Incumbent, seed: int, apart: Sequence[Apart] = ()) -> Pieces:
    """Bisect over targets until bound and cost are equal, or too many targets are not decided.

    ``apart``: precedences known to hold. It ends at once if the model would be too large or, with
    one stage per rank, memory does not limit the rate.
    """
    make = order_model(best.problem, apart)
    if make is None:
        return
    above = best.cost  # the lowest cost that was found, or not decided
    steps = STEPS if LinearInstance.of(best.problem) else (FIRST, *STEPS)
    answers = unanswered = 0
    while unanswered < PATIENCE and not best.over():
        low, high = best.bound.value, best.cost * (1 - JUST_BELOW)
        target, share = low + steps[min(answers, len(steps) - 1)] * (above - low), SHARE
        if target >= min(above, high) or target - low < CLOSE * best.cost:
            target, share = high, 1.0
        before = best.bound.value, best.cost
        answered = ask(best, make, target, best.budget(share), seed)
        if answered and before == (best.bound.value, best.cost):
            return  # the precision of ticks is reached
        answers, unanswered = (answers + 1, 0) if answered else (0, unanswered + 1)
        above = min(best.cost, above if answered else target)
        yield


def climb(best: Incumbent, seed: int) -> Pieces:
    """:func:`bisect` for unlike microbatches, with rising targets.

    The microbatches that hold most memory for longest come first, then more of them. After a target
    that was not decided it yields, so that the caller may do something else in between.
    """
    for number in unlike_numbers(best.problem):
        make = partial(UnlikeInterleaving, best.problem, number=number)
        low = best.bound.value
        for step in (FIRST, *STEPS):
            for _ in range(PATIENCE):
                if best.over():
                    return
                target = min(low + step * (best.cost - low), best.cost * (1 - JUST_BELOW))
                if target <= best.bound.value:
                    break
                if ask(best, make, target, best.budget(UNLIKE_SHARE), seed):
                    break
                yield
            else:
                return
            if best.bound.value < target and number < best.problem.microbatches:
                break  # this subset has a schedule of this cost


def unlike_numbers(problem: Problem) -> list[int]:
    """The numbers of unlike microbatches to ask about, in ascending order, up to all.

    Numbers whose model would be too large are left out.
    """
    numbers, n = [problem.microbatches], 3
    while n < problem.microbatches:
        numbers, n = [*numbers, n], n + n // 2
    return sorted(n for n in numbers if literals_of_unlike(problem, n) <= UNLIKE_LITERALS)


def order_model(problem: Problem, apart: Sequence[Apart]) -> MakeModel | None:
    """A function that creates the model of a problem, or None.

    None if the model is too large, another search is better, or microbatches are unlike: the models
    number microbatches by position.
    """
    linear = LinearInstance.of(problem)
    if problem.profile.unlike or 3 * problem.stages * problem.microbatches > OPS:
        return None
    if linear is None:
        few = general_literals(problem) <= GENERAL_LITERALS
        return partial(GeneralInterleaving, problem, apart=apart) if few else None
    if not slots_limit_rate(linear) or literals(linear) > LITERALS:
        return None
    return partial(Interleaving, problem, linear)


def ask(best: Incumbent, make: MakeModel, target: float, budget: Budget, seed: int) -> bool:
    """Ask for schedules that cost at most ``target``; offers them, and raises the bound.

    Returns whether it was decided: the best such schedule was found, or there is none.
    """
    model = make(best.bound.value, target)

    def raise_to(bound: float) -> None:
        best.raise_bound(Bound(bound, "interleaving", _WORDS))

    search = find(best, model, budget, seed, lambda bound: raise_to(model.proves(bound)))
    if search.bound is not None:
        raise_to(model.proves(search.bound))
    if search.refuted:
        raise_to(target)
    return best.closed or search.refuted or search.status == cp_model.OPTIMAL


def find(
    best: Incumbent,
    model: OrderModel,
    budget: Budget,
    seed: int,
    on_bound: Callable[[float], None] = lambda _: None,
    *,
    method: Method = Method.CP_SAT,
) -> CpSatThread[Order]:
    """Run CP-SAT on ``model`` until it ends or ``budget`` is used up, and return the ended search.

    Its schedules are offered to ``best`` under the name ``method``, its bounds, in ticks, passed to
    ``on_bound``.
    """
    parameters = {
        "max_time_in_seconds": budget.time.left,
        "max_deterministic_time": budget.work.ops / OPS_A_SECOND / model.unit,
        "num_workers": 1,
        "linearization_level": 0,
        "random_seed": seed % 2**31,
        **model.parameters,
    }
    with CpSatThread(model.cp, model.orders, **parameters) as search:
        while (news := search.next(best.interrupted)) is not None:
            if isinstance(news, float):
                on_bound(news)
            elif (cost := _cost(best, news)) is not None:
                best.offer(news, method, cost)
    best.work.spend(search.work * model.unit * OPS_A_SECOND)
    return search


def literals(linear: LinearInstance) -> int:
    return int(linear.microbatches * (linear.capacity - 1).sum())


def _cost(best: Incumbent, order: Order) -> float | None:
    """The cost of ``order``; None if it is invalid or does not contain all microbatches."""
    ops = sum(len(split_backwards(row)) for row in order)
    if ops < 3 * best.problem.stages * best.problem.microbatches:
        return None
    schedule = Schedule(best.problem, order)
    try:
        timing = simulate(schedule)
    except InvalidScheduleError:
        return None
    return timing.cost(best.problem.objective) if within_memory(best.problem, timing) else None
