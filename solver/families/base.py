"""What a family is, and what all of them share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.cost.transfer_order import in_sending_order
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, Transfer
from pipeloom.ir.units import counted, exact_amount

_TOLERANCE = 1e-9  # relative, on memory: sums of M_B and M_W are rounded


class Family(Protocol):
    """A named shape of schedule; ``summary`` is one line for people."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    def problem(
        self,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None,
        objective: Objective,
    ) -> Problem:
        """The instance that this family solves: its placement, its cut of the profile.

        Raises InputError where the profile has no such cut.
        """
        ...

    def supports(self, problem: Problem) -> str | None:
        """None where :meth:`build` can serve ``problem``, else the reason why not."""
        ...

    def build(self, problem: Problem) -> Schedule:
        """The schedule, timed. Raises InputError where unsupported, InfeasibleError over memory."""
        ...


@runtime_checkable
class Parametrized(Protocol):
    """A family whose name may carry a whole number, as in ``interleaved-1f1b:3``."""

    @property
    def parameter(self) -> str:
        """What the number is called in a message."""
        ...

    @property
    def least(self) -> int:
        """The smallest number that it may be."""
        ...

    def with_parameter(self, value: int) -> Family: ...


class Linear:
    """What the families with one stage a rank share: their instance and what they support."""

    name: str

    def problem(
        self,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None,
        objective: Objective,
    ) -> Problem:
        problem = Problem.linear(profile, microbatches, memory_limit, objective)
        require(self.name, self.supports(problem))
        return problem

    def supports(self, problem: Problem) -> str | None:
        if problem.stages != problem.ranks:
            return (
                f"needs one stage a rank, not {counted(problem.stages, 'stage')} on "
                f"{counted(problem.ranks, 'rank')}"
            )
        placement = problem.placement
        if placement != Placement.linear(problem.ranks):
            return f"needs stage s on rank s, not the placement {placement.name}"
        return None


def round_robin(
    profile: Profile, microbatches: int, memory_limit: float | None, objective: Objective
) -> Problem:
    """The instance with microbatch j on rank j mod P; weights travel."""
    placement = Placement.round_robin(profile.ranks)
    return Problem(profile, microbatches, placement, profile.limit_from(memory_limit), objective)


def not_round_robin(problem: Problem) -> str | None:
    """Why the placement is not that of :func:`round_robin`; None where it is."""
    ranks, placement = problem.ranks, problem.placement
    if placement != Placement.round_robin(ranks):
        return f"needs microbatch j on rank j mod {ranks}, not the placement {placement.name}"
    return None


def require(name: str, reason: str | None) -> None:
    """Raises InputError where there is a ``reason`` why family ``name`` cannot be built."""
    if reason is not None:
        raise InputError(f"{name}: {reason}")


def finished(
    problem: Problem,
    order: Sequence[Iterable[Op]],
    name: str,
    transfers: Sequence[Transfer] = (),
    pairs: tuple[tuple[int, ...], ...] = (),
) -> Schedule:
    """The timed schedule of a family's order, one iterable of ops a rank.

    Where the profile has links, its transfers are listed in the order in which the wires can
    carry them first come, first served.
    Raises InfeasibleError, naming the rank that needs most, where it exceeds the memory limit.
    """
    listed = replace(Schedule.of(problem, order, name), transfers=tuple(transfers), pairs=pairs)
    schedule = timed(in_sending_order(listed))
    assert schedule.timing is not None
    peak, limit = schedule.timing.peak_memory, problem.memory_limit
    over = [r for r in range(problem.ranks) if peak[r] > limit[r] * (1 + _TOLERANCE)]
    if over:
        rank = max(over, key=lambda r: peak[r])
        raise InfeasibleError(
            f"{name}: rank {rank} holds {exact_amount(peak[rank])}, more than its memory limit "
            f"{exact_amount(limit[rank])}; the smallest limit for this family is "
            f"{exact_amount(peak[rank])}",
            smallest=peak[rank],
            rank=rank,
        )
    return schedule


def alternate(
    stage: int, microbatches: int, *, ahead: int, backward: OpKind, delay: int = 0
) -> list[Op]:
    """One rank of the 1F1B kin: ``ahead`` F's, then backward and F in turn, microbatches in order.

    Where ``backward`` is B, the W's trail it by ``delay`` microbatches: W(k - delay) comes right
    after B(k), and what is left comes last.
    """
    ops = [Op(OpKind.F, stage, j) for j in range(min(ahead, microbatches))]
    split = backward is OpKind.B
    for k in range(microbatches):
        ops.append(Op(backward, stage, k))
        if split and k >= delay:
            ops.append(Op(OpKind.W, stage, k - delay))
        if k + ahead < microbatches:
            ops.append(Op(OpKind.F, stage, k + ahead))
    if split:
        late = range(max(0, microbatches - delay), microbatches)
        ops += [Op(OpKind.W, stage, j) for j in late]
    return ops
