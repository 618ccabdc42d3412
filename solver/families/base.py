"""The base classes of all families, and the functions that finish their schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.cost.transfer_order import in_sending_order
from pipeloom.ir.documents.fields import MOST_PAIRS, MOST_STAGES
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import IntArray, Op, OpKind, pack_all
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, Transfer
from pipeloom.ir.units import counted, sufficient_size, unit_meant

from ..core.tolerances import ROUNDING


class Family(ABC):
    """A named kind of published schedule that can be built for any profile.

    ``name``: the name on the command line. ``summary``: a description in one line, for users.
    ``by_times``: whether the order of ops depends on the times and sizes of the stages.
    """

    name: str
    summary: str
    by_times: ClassVar[bool] = False

    @abstractmethod
    def placed(self, profile: Profile) -> tuple[Profile, Placement]:
        """Return the profile as this family cuts it into stages, and the placement of these stages.

        Raises InputError if the profile cannot be cut that way.
        """

    @abstractmethod
    def supports(self, problem: Problem) -> str | None:
        """Return the reason why :meth:`build` does not support ``problem``, or None if it does."""

    @abstractmethod
    def schedule(self, problem: Problem) -> Schedule:
        """Return the timed schedule of a problem that the family supports.

        Raises InfeasibleError if memory is too small.
        """

    def problem(
        self, profile: Profile, microbatches: int, memory_limit: float | None, objective: Objective
    ) -> Problem:
        """Return the problem that this family solves for a profile, with its own cut and placement.

        ``memory_limit``: None means the profile's limit. Raises InputError if the family cannot be
        built for this profile and number of microbatches.
        """
        cut, placement = self.placed(profile)
        most = max(1, min(MOST_STAGES, MOST_PAIRS // microbatches))
        if cut.num_stages > most:
            raise InputError(
                f"{self.name}: expected at most {counted(most, 'stage')} for "
                f"{counted(microbatches, 'microbatch')}, got {cut.num_stages}"
            )
        problem = Problem(cut, microbatches, placement, cut.limit_from(memory_limit), objective)
        self._require(problem)
        return problem

    def build(self, problem: Problem) -> Schedule:
        """Return the timed schedule of ``problem``.

        Raises InputError if the family does not support ``problem``, and InfeasibleError if memory
        is too small.
        """
        self._require(problem)
        return self.schedule(problem)

    def _require(self, problem: Problem) -> None:
        if (reason := self.supports(problem)) is not None:
            raise InputError(f"{self.name}: {reason}")


@dataclass(frozen=True)
class ParametrizedFamily(Family):
    """A family whose name may end in an integer parameter, as in ``interleaved-1f1b:3``.

    ``number``: the parameter, or None if the name has none. ``base``: the name without the
    parameter. ``parameter``: what error messages call the parameter, such as K. ``least``,
    ``most``: the minimum and the maximum of ``number``.
    """

    number: int | None = None
    base: ClassVar[str]
    parameter: ClassVar[str]
    least: ClassVar[int] = 1
    most: ClassVar[int] = MOST_STAGES

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.base if self.number is None else f"{self.base}:{self.number}"

    def with_parameter(self, value: int) -> Self:
        return replace(self, number=value)


class LinearFamily(Family):
    """A family with one stage per rank, stage s on rank s."""

    @abstractmethod
    def row(self, rank: int, ranks: int, microbatches: int) -> IntArray:
        """Return the packed ops of one rank, in the order in which the rank runs them.

        ``rank``: the rank. ``ranks``: the number of ranks, P.
        """

    def placed(self, profile: Profile) -> tuple[Profile, Placement]:
        return profile, Placement.linear(profile.ranks)

    def supports(self, problem: Problem) -> str | None:
        if problem.stages != problem.ranks:
            return needs_one_stage(problem)
        placement = problem.placement
        if placement != Placement.linear(problem.ranks):
            return f"needs stage s on rank s, not the placement {placement.name}"
        return None

    def rows(self, ranks: int, microbatches: int) -> list[IntArray]:
        return [self.row(rank, ranks, microbatches) for rank in range(ranks)]

    def schedule(self, problem: Problem) -> Schedule:
        return finished(problem, self.rows(problem.ranks, problem.microbatches), self.name)


class RoundRobinFamily(Family):
    """A family whose ranks send weights: microbatch j runs all its stages on rank j mod P."""

    def placed(self, profile: Profile) -> tuple[Profile, Placement]:
        return profile, Placement.round_robin(profile.ranks)

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        if placement != Placement.round_robin(ranks):
            return f"needs microbatch j on rank j mod {ranks}, not the placement {placement.name}"
        return None


def needs_one_stage(problem: Problem) -> str:
    """Return an error message: the family needs one stage per rank.

    The message gives the numbers of stages and ranks of ``problem``.
    """
    return (
        f"needs one stage per rank (layers are cut to fit), not {counted(problem.stages, 'stage')} "
        f"on {counted(problem.ranks, 'rank')}"
    )


def finished(
    problem: Problem,
    order: Sequence[Iterable[Op] | IntArray],
    name: str,
    transfers: Sequence[Transfer] = (),
    pairs: tuple[tuple[int, ...], ...] = (),
) -> Schedule:
    """Return the timed schedule of a family in which each rank runs its ops in the given order.

    ``order``: for each rank, its ops in order, either as :class:`Op` or packed. ``name``: the
    family's name. ``transfers``: all messages with weights or gradients, in any order; if the
    profile has links, the result lists them in the order in which wires carry them, first come,
    first served. ``pairs``: for each rank, the positions in its order of the F's that begin a pair
    (an F and the BW after it, which run at the same time). Raises InfeasibleError if a rank exceeds
    its memory limit; if several do, the error names the one that holds most.
    """
    listed = replace(Schedule.of(problem, order, name), transfers=tuple(transfers), pairs=pairs)
    schedule = timed(in_sending_order(listed))
    assert schedule.timing is not None
    peak, limit = schedule.timing.peak_memory, problem.memory_limit
    over = [r for r in range(problem.ranks) if peak[r] > limit[r] * (1 + ROUNDING)]
    if over:
        rank = max(over, key=lambda r: peak[r])
        raise InfeasibleError(
            f"{name}: rank {rank} holds {sufficient_size(peak[rank])}, more than its memory limit "
            f"{sufficient_size(limit[rank])}; the smallest limit for this family is "
            f"{sufficient_size(peak[rank])}{unit_meant(limit[rank], peak[rank])}",
            smallest=peak[rank],
            rank=rank,
            given=limit[rank],
        )
    return schedule


def alternate(
    stage: int, microbatches: int, *, ahead: int, backward: OpKind, delay: int = 0
) -> IntArray:
    """Return the packed ops of one ``stage`` in a schedule similar to 1F1B, in order.

    First come ``ahead`` F's, then a backward and an F alternately, then the remaining backwards;
    each kind runs the microbatches in ascending order. ``backward``: the kind of the backwards, B
    or BW. If it is B, ``delay`` is by how many microbatches W's lag: W(k - ``delay``) comes right
    after B(k), and the last ``delay`` W's come at the end.
    """
    turn = 3 * np.arange(microbatches)  # sort key of each microbatch's backward
    places = {OpKind.F: turn + 2 - 3 * min(ahead, microbatches), backward: turn}
    if backward is OpKind.B:
        places[OpKind.W] = turn + 1 + 3 * delay
    rows = [pack_all(kind, stage, np.arange(microbatches)) for kind in places]
    return in_turn(rows, [*places.values()])


def in_turn(rows: Sequence[IntArray], places: Sequence[IntArray]) -> IntArray:
    """Return the packed ops of all ``rows`` in one array, in ascending order of their sort keys.

    ``places``: for each row, the sort keys of its ops. Ops with equal keys stay in the order in
    which ``rows`` lists them.
    """
    ordered: IntArray = np.concatenate(rows)[np.argsort(np.concatenate(places), kind="stable")]
    return ordered
