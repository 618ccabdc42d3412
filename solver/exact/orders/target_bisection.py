"""Proofs and schedules where memory is little, by bisection over target costs.

A target far below the best cost is soon refuted, one just below it may take long. So targets
climb from what is proven to what is found, or has not been answered in its time.
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

LITERALS, GENERAL_LITERALS = 12_000, 20_000  # open pairs of a model at most
UNLIKE_LITERALS, UNLIKE_SHARE = 4_000, 0.75  # where microbatches are unlike
OPS = 25_000  # ops of a model at most
STEPS = (0.3, 0.5, 0.7, 1.0)  # targets between bound and cost: low ones, refuted sooner, first
FIRST = 0.1  # where a rank has several stages
SHARE = 0.4  # of the time left for a target; all of it where it decides the rest
PATIENCE = 3  # targets without an answer after which the time is better spent on a search
CLOSE = 1e-3  # relative distance of bound and target from which on only the best cost is asked for
JUST_BELOW = 5e-7  # how far the highest target is below the best cost, relative: it counts as met

_WORDS = "few orders are possible: all orders of F's and B's are searched"


class OrderModel(Protocol):
    """The orders of schedules between two costs as a CP-SAT model.

    ``unit``: seconds that one unit of CP-SAT's deterministic time takes, roughly.
    ``parameters``: of CP-SAT, those that suit the model.
    """

    cp: cp_model.CpModel

    @property
    def unit(self) -> float: ...

    @property
    def parameters(self) -> Mapping[str, object]: ...

    def orders(self, solution: cp_model.CpSolverSolutionCallback) -> Order: ...

    def proves(self, bound: float) -> float: ...


MakeModel = Callable[[float, float], OrderModel]
"""The model for schedules of a cost from the first to the second number."""


def bisect(best: Incumbent, seed: int, apart: Sequence[Apart] = ()) -> Pieces:
    """Asks until bound and cost meet or nothing is answered any more; ``apart`` is known.

    At once over where the model would be too large or, with one stage per rank, memory does not
    limit the rate.
    """
    make = order_model(best.problem, apart)
    if make is None:
        return
    above = best.cost  # nothing answered lies between this and the bound
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
            return  # as near as ticks can tell
        answers, unanswered = (answers + 1, 0) if answered else (0, unanswered + 1)
        above = min(best.cost, above if answered else target)
        yield


def climb(best: Incumbent, seed: int) -> Pieces:
    """The same where microbatches are unlike: asks higher and higher targets, of the longest
    microbatches alone and then of more; leaves off, once a target is not answered, for so long as
    the caller likes."""
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
                break  # so few have a schedule of this cost


def unlike_numbers(problem: Problem) -> list[int]:
    """The numbers of unlike microbatches whose orders are asked for: few, then more, as far as
    their models are not too large, and all."""
    numbers, n = [problem.microbatches], 3
    while n < problem.microbatches:
        numbers, n = [*numbers, n], n + n // 2
    return sorted(n for n in numbers if literals_of_unlike(problem, n) <= UNLIKE_LITERALS)


def order_model(problem: Problem, apart: Sequence[Apart]) -> MakeModel | None:
    """The model of a problem; None where it is too large, another search does better, or
    microbatches are unlike, which both models name by their turn."""
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
    """Offers schedules of at most ``target`` as they are found; whether the best or none was."""
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
    """Offers the model's schedules as they are found; ``on_bound``: is given bounds in ticks."""
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
    """The cost of ``order``; None where it breaks a rule, or leaves microbatches out."""
    ops = sum(len(split_backwards(row)) for row in order)
    if ops < 3 * best.problem.stages * best.problem.microbatches:
        return None
    schedule = Schedule(best.problem, order)
    try:
        timing = simulate(schedule)
    except InvalidScheduleError:
        return None
    return timing.cost(best.problem.objective) if within_memory(best.problem, timing) else None
