"""Search for the parameters of the best schedule with streamed weights.

Ranks wait for each other only for weights, so a few numbers determine a schedule: how many
microbatches share a transfer, how many buffers there are, which route copies take, and how often
gradients are sent to their owners. The search is coordinate descent with random restarts: each
number is varied over all its values, while the others are fixed, until no change improves the
schedule.

Schedules are compared by the memory that they need beyond that of the devices. If that is equal,
they are compared by cost, then by their steady step (the time of an iteration when iterations
follow each other), then by the bytes sent, then by the activations held. With ``by_step`` the step
comes before the cost.

A bound on the objective need not hold for the step, so with ``by_step`` the incumbent's bound is
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
from ..core.options import SolveOptions
from .parameters import WeightPassingParameters, WeightPassingSpace
from .round_orders import rows, within_limit
from .streaming import Route, default_owners, streamed

RESTARTS = 100
PATIENCE = 16  # maximum number of vain restarts with `by_step`, as shortest steps are rarely proven
BUILDING = 500  # work to build an op and its transfers, in simulated ops
PLAYING = 1500  # work to compute the step, per op, in simulated ops
DIGITS = 9  # costs are rounded to this many digits before they are compared


@dataclass(frozen=True, slots=True, order=True)
class Merit:
    """A sort key of schedules; a better schedule has a lower key.

    ``excess``: the memory needed beyond that of the device, on the rank where that is the most; 0
    if all devices suffice. ``cost``: the value of the objective or, with ``by_step``, the steady
    step. ``tie``: the other one of these two; 0 if it was not computed. ``bytes``: the bytes sent.
    ``held``: the maximum, over the ranks, of the peak memory of activations. ``cost`` and ``tie``
    are in units of the busiest rank's work.
    """

    excess: float
    cost: float
    tie: float
    bytes: float
    held: float


NONE = Merit(*[float("inf")] * len(fields(Merit)))  # for parameters that give no schedule


def busiest_first_owners(problem: Problem) -> tuple[int, ...]:
    """Return the owner of each stage, where that of stage 0 is a rank with the most microbatches.

    The result is that of :func:`default_owners`, in which the owner of stage 0 and that rank are
    exchanged if they differ.
    """
    found = default_owners(problem)
    busiest = int(np.bincount(problem.owner[0]).argmax())
    swapped = {found[0]: busiest, busiest: found[0]}
    return tuple(swapped.get(rank, rank) for rank in found)


class WeightPassingSearch:
    """A search that tries settings of the parameters, each at most once.

    The incumbent ``best`` gets the best schedule. ``families``: the schedules of families, which
    are tried as well. ``options.memory``: a function that returns the memory that each rank needs
    for a schedule; it is called if the profile gives ``device_memory``. If ``options.by_step`` is
    set, schedules are compared by their steady step (the time of an iteration when iterations
    follow each other) instead of the objective, and the cost and bound of the incumbent are those
    of the step.
    """

    def __init__(
        self,
        best: Incumbent,
        families: Iterator[Schedule],
        options: SolveOptions,
        rng: np.random.Generator,
    ) -> None:
        self._best, self._problem = best, best.problem
        self._memory, self.by_step = options.memory, options.by_step
        self._families = families
        self._choices = WeightPassingSpace(best.problem)
        self._merits: dict[WeightPassingParameters, Merit] = {}
        self._least: tuple[Merit, Schedule] | None = None
        self._unit = float(busy(best.problem).max()) or 1.0  # unit of costs
        self._left, self._in_vain, self.able = self._starts(rng), 0, True

    @cached_property
    def _owner(self) -> tuple[int, ...]:
        return busiest_first_owners(self._problem)

    def first(self) -> None:
        """Build one schedule that keeps the memory limit, and offer it to the incumbent."""
        self._merit(self._fewest_rounds(Route.DIRECT))

    def round(self, best: Incumbent) -> None:
        """Descend from the next start; the first round also tries the families' schedules.

        ``best``: the incumbent, which limits the time.
        """
        for schedule in self._families:
            if best.over():
                break
            self._consider(schedule)
        before, start = self._nearest, next(self._left, None)
        if start is not None:
            self._descend(start)
        self._in_vain = 0 if self._nearest < before else self._in_vain + 1
        self.able = start is not None and not (self.by_step and self._in_vain >= PATIENCE)

    @property
    def _nearest(self) -> tuple[float, float]:
        """``excess`` and ``cost`` of the best schedule so far; both infinite if there is none."""
        least = self._least[0] if self._least else NONE
        return least.excess, least.cost

    def _starts(self, rng: np.random.Generator) -> Iterator[WeightPassingParameters]:
        """Yield the parameters from which to descend.

        First come two starts for each route, the better ones before the others: with the fewest
        rounds that fit in memory, and with the most rounds. Random starts follow. In a round, the
        microbatches of a rank share the weights that arrive.
        """
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
        """Return ``choices`` sorted by merit, the best first.

        If the time or work runs out, the choices not tried yet are left out.
        """
        merits: dict[WeightPassingParameters, Merit] = {}
        for choice in choices:
            if not self._best.exhausted:
                merits[choice] = self._merit(choice)
        return sorted(merits, key=merits.__getitem__)

    def _descend(self, now: WeightPassingParameters) -> None:
        """Run coordinate descent from ``now``.

        It varies one parameter at a time, over all its values, until no change helps, or the time
        or work is used up.
        """
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
        return self._consider(schedule)

    def _consider(self, schedule: Schedule) -> Merit:
        """Keep ``schedule`` if it is the best so far; return its merit.

        ``schedule``: a timed schedule within the memory limit.
        """
        merit = self._judged(schedule)
        if self._least is None or merit < self._least[0]:
            self._least = merit, schedule
            self._offer(merit, schedule)
        return merit

    def _offer(self, merit: Merit, schedule: Schedule) -> None:
        """Give ``schedule`` to the incumbent if it fits on the devices.

        Otherwise give the incumbent an error with the rank that lacks the most memory, and the
        memory that it needs.
        """
        if merit.excess <= 0:
            self._best.take(schedule, merit.cost * self._unit)
            return
        lacks, given = self._lacks(schedule), self._problem.profile.device_memory
        assert given is not None
        rank = int(lacks.argmax())
        holds = given[rank] + float(lacks[rank])
        self._best.lacking = InfeasibleError(
            f"device_memory {memory_size(given[rank])} is too small for rank {rank}: the schedule "
            f"found that exceeds it least holds {sufficient_size(holds)} there",
            smallest=holds,
            rank=rank,
            device=True,
        )

    def _keeps_limit(self, choice: WeightPassingParameters) -> bool:
        return within_limit(self._problem, rows(self._problem, choice.rounds, choice.deep))

    def _judged(self, schedule: Schedule) -> Merit:
        timing = schedule.timing
        assert timing is not None
        excess = max(0.0, *self._lacks(schedule))
        cost = self._rounded(timing.cost(self._problem.objective))
        least = self._least[0] if self._least else NONE
        step = 0.0  # the step is computed only if no known schedule costs less
        if self.by_step or (excess <= 0 and (least.excess > 0 or cost <= least.cost)):
            step = self._rounded(step_between_ops(schedule))
            self._best.work.spend(PLAYING * schedule.num_ops)
        first, second = (step, cost) if self.by_step else (cost, step)
        bytes_ = float(traffic(schedule).sum())
        return Merit(excess, first, second, bytes_, max(timing.peak_memory))

    def _rounded(self, cost: float) -> float:
        return round(cost / self._unit, DIGITS)

    def _lacks(self, schedule: Schedule) -> FloatArray:
        """Return the memory that each rank needs beyond that of its device, (P,).

        It is negative for ranks whose device has memory left, and 0 for all ranks if device memory
        is unknown.
        """
        given = self._problem.profile.device_memory
        if self._memory is None or given is None:
            return np.zeros(self._problem.ranks)
        return np.subtract(self._memory(schedule), given)
