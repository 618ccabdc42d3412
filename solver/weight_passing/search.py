"""The search for the parameters of the best schedule with streamed weights.

Nothing that a rank computes waits for another rank but for weights, so that few numbers decide:
how many microbatches share a transfer, how many buffers there are, which way copies go, how often
gradients go home. Each of them is varied alone, over all its values, until none improves the
schedule; then again from elsewhere. Schedules are compared by the memory that they need beyond the
devices', then by cost; of those that cost least by the steady time of a step where iterations
follow each other, then by the bytes that are sent, and by the activations held. By step, that time
comes first and the cost second.

A bound on the objective need not hold for the step: by step the incumbent's is
:func:`..bounds.work_bound`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.ir.cost.traffic import traffic
from pipeloom.ir.errors import InfeasibleError, InvalidScheduleError
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import memory_size, sufficient_size

from ..bounds.general import busy
from ..core.incumbent import Incumbent
from ..core.options import Memory
from .parameters import WeightPassingParameters, WeightPassingSpace
from .round_orders import rows, within_limit
from .streaming import Route, default_owners, streamed

RESTARTS = 100
PATIENCE = 16  # restarts in vain, by step, as few steps can be proven to be the shortest
BUILDING = 500  # simulated ops that an op or a transfer of a schedule counts that is built
PLAYING = 1500  # the same for the step time of a schedule, an op
DIGITS = 9  # behind the largest to which equal costs agree


@dataclass(frozen=True, slots=True, order=True)
class Merit:
    """The first figure that differs counts, less is better. ``tie``: the step, or the cost."""

    excess: float
    cost: float
    tie: float
    bytes: float
    held: float


NONE = Merit(*[float("inf")] * len(fields(Merit)))  # of parameters that cannot run


def busiest_first_owners(problem: Problem) -> tuple[int, ...]:
    """A rank for each stage; the owner of the first stage has as many microbatches as any."""
    found = default_owners(problem)
    busiest = int(np.bincount(problem.owner[0]).argmax())
    swapped = {found[0]: busiest, busiest: found[0]}
    return tuple(swapped.get(rank, rank) for rank in found)


class WeightPassingSearch:
    """Tries parameters, each once, and gives the best schedule to the incumbent.

    ``memory`` is asked where the profile has ``device_memory``; ``by_step``: schedules are compared
    by the steady time of a step, not by the problem's objective, and the incumbent's costs and
    bound are of that.
    """

    def __init__(self, best: Incumbent, memory: Memory | None, by_step: bool = False) -> None:
        self._best, self._problem = best, best.problem
        self._memory, self.by_step = memory, by_step
        self._choices = WeightPassingSpace(best.problem)
        self._merits: dict[WeightPassingParameters, Merit] = {}
        self._least: tuple[Merit, Schedule] | None = None
        self._unit = float(busy(best.problem).max()) or 1.0  # of costs

    @cached_property
    def _owner(self) -> tuple[int, ...]:
        return busiest_first_owners(self._problem)

    def first(self) -> None:
        """Builds one schedule that keeps the memory limit."""
        self._merit(self._fewest_rounds(Route.DIRECT))

    def improve(self, seed: int) -> None:
        """Descends from many starts until time or work is up, or the best is proven."""
        in_vain = 0
        for start in self._starts(np.random.default_rng(seed)):
            before = self._nearest
            self._descend(start)
            in_vain = 0 if self._nearest < before else in_vain + 1
            if self._best.closed or self._best.exhausted or (self.by_step and in_vain >= PATIENCE):
                return

    @property
    def _nearest(self) -> tuple[float, float]:
        """The memory that the best so far lacks, and its cost."""
        least = self._least[0] if self._least else NONE
        return least.excess, least.cost

    def _starts(self, rng: np.random.Generator) -> Iterator[WeightPassingParameters]:
        """The fewest rounds that memory allows, and the most, with each route; then any."""
        most = [
            WeightPassingParameters(rounds=self._choices.most, route=route, home=route)
            for route in Route
        ]
        yield from self._best_first([*map(self._fewest_rounds, Route), *most])
        for _ in range(RESTARTS):
            yield self._choices.any(rng)

    def _fewest_rounds(self, route: Route) -> WeightPassingParameters:
        start = WeightPassingParameters(route=route, home=route)
        choices = (replace(start, rounds=n) for n in self._choices.values(start)["rounds"])
        return next(filter(self._keeps_limit, choices))

    def _best_first(
        self, choices: Sequence[WeightPassingParameters]
    ) -> list[WeightPassingParameters]:
        """The choices that there was time to try, the best first."""
        merits: dict[WeightPassingParameters, Merit] = {}
        for choice in choices:
            if not self._best.exhausted:
                merits[choice] = self._merit(choice)
        return sorted(merits, key=merits.__getitem__)

    def _descend(self, now: WeightPassingParameters) -> None:
        """Varies one field of ``now`` after the other until none makes it better."""
        merit, names = self._merit(now), list(self._choices.values(now))
        left = len(names)
        while left:
            name, left = names.pop(0), left - 1
            names.append(name)
            for value in self._choices.values(now)[name]:
                other = replace(now, **{name: value})
                found = self._merit(other)
                if found < merit:
                    now, merit, left = other, found, len(names) - 1
                if self._best.exhausted:
                    return

    def check_memory(self) -> None:
        """Raises InfeasibleError where none of the schedules fits on the devices."""
        assert self._least is not None  # one microbatch at a time, straight from owners, can run
        merit, schedule = self._least
        if merit.excess <= 0:
            return
        lacks, given = self._lacks(schedule), self._problem.profile.device_memory
        assert given is not None
        rank = int(lacks.argmax())
        holds = given[rank] + float(lacks[rank])
        raise InfeasibleError(
            f"device_memory {memory_size(given[rank])} is too small for rank {rank}: the schedule "
            f"found that exceeds it least holds {sufficient_size(holds)} there",
            smallest=holds,
            rank=rank,
            device=True,
        )

    def _merit(self, choice: WeightPassingParameters) -> Merit:
        if choice not in self._merits:
            self._merits[choice] = self._tried(choice)
        return self._merits[choice]

    def _tried(self, choice: WeightPassingParameters) -> Merit:
        if not self._keeps_limit(choice):
            return NONE
        order = rows(self._problem, choice.rounds, choice.deep)
        try:
            schedule = streamed(self._problem, order, choice, self._owner)
        except InvalidScheduleError:
            return NONE
        finally:
            self._best.work.spend(BUILDING * sum(map(len, order)))
        return self.consider(schedule)

    def consider(self, schedule: Schedule) -> Merit:
        """Takes a timed schedule that keeps the memory limit, where it is the best so far."""
        merit = self._judged(schedule)
        if self._least is None or merit < self._least[0]:
            self._least = merit, schedule
            if merit.excess <= 0:
                self._best.take(schedule, merit.cost * self._unit)
        return merit

    def _keeps_limit(self, choice: WeightPassingParameters) -> bool:
        return within_limit(self._problem, rows(self._problem, choice.rounds, choice.deep))

    def _judged(self, schedule: Schedule) -> Merit:
        timing = schedule.timing
        assert timing is not None
        excess = max(0.0, *self._lacks(schedule))
        cost = self._rounded(timing.cost(self._problem.objective))
        least = self._least[0] if self._least else NONE
        step = 0.0  # it matters, and is played, only where nothing costs less
        if self.by_step or (excess <= 0 and (least.excess > 0 or cost <= least.cost)):
            step = self._rounded(step_between_ops(schedule))
            self._best.work.spend(PLAYING * schedule.num_ops)
        first, second = (step, cost) if self.by_step else (cost, step)
        bytes_ = float(traffic(schedule).sum())
        return Merit(excess, first, second, bytes_, max(timing.peak_memory))

    def _rounded(self, cost: float) -> float:
        return round(cost / self._unit, DIGITS)

    def _lacks(self, schedule: Schedule) -> FloatArray:
        """The memory that each rank has to hold beyond its device's, shape (P,)."""
        given = self._problem.profile.device_memory
        if self._memory is None or given is None:
            return np.zeros(self._problem.ranks)
        return np.subtract(self._memory(schedule), given)
