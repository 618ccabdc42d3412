"""The schedule: who computes what in which order, and what is known of it.

Versions of weights, and lagging gradients, where the optimizer steps after each microbatch.

A microbatch whose F ran before other microbatches' updates has its B with the weights that its F
used: its rank keeps that version until then (weight stashing, PipeDream, 2019). The gradient is
then added to newer weights than it was computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..errors import InputError
from ..units import counted
from .ops import FloatArray, IntArray, Op, OpKind, pack, unpack
from .problem import Objective, Problem

Made = TypeVar("Made")


OPTIMIZED = "optimized"
"""The family of a schedule that is of none."""


class Status(StrEnum):
    """``OPTIMAL`` only where cost and lower bound are equal to within 1e-6 relative."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


class Updates(Enum):
    """When the optimizer steps a stage: once an iteration, or after each microbatch's gradient."""

    ITERATION = "iteration"
    MICROBATCH = "microbatch"


class TransferKind(Enum):
    """The content of a transfer in a weight-passing schedule."""

    WEIGHT = "weight"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy of a stage's weights, or of their gradient, moving from ``source`` to ``target``.

    Weights may be used on the sender as before; a gradient leaves with all that was added to it,
    and what the sender adds from then on leaves with the next one. ``copy`` tells apart the copies
    of one tensor that are under way; a copy's transfers are in the order in which they happen. It
    starts when its copy's transfer before it has ended, the first ``after`` ops of ``source`` are
    done, and the first ``room`` ops of ``target``, which has a buffer for it from then on.
    ``before``: the position in ``target``'s order of the first op that needs it (the number of its
    ops where none does). ``blocks``: the position in ``source``'s order of the first op that waits
    until it has ended; None where none does.
    """

    kind: TransferKind
    stage: int
    copy: int
    source: int
    target: int
    after: int
    before: int
    room: int = 0
    blocks: int | None = None

    @property
    def item(self) -> tuple[TransferKind, int, int]:
        """The tensor that is sent: kind, stage and copy."""
        return self.kind, self.stage, self.copy

    def __str__(self) -> str:
        return (
            f"{self.kind.value} {self.stage} copy {self.copy} from rank {self.source} to "
            f"{self.target}"
        )


class Transfers(tuple[Transfer, ...]):
    """The transfers of a schedule and of those that differ from it in times alone, with what is
    worked out of them (:func:`once`)."""

    def __reduce__(self) -> tuple[type[Transfers], tuple[tuple[Transfer, ...]]]:
        return Transfers, (tuple(self),)


def once(transfers: Sequence[Transfer], make: Callable[[Sequence[Transfer]], Made]) -> Made:
    """The result of ``make`` on a schedule's transfers, made for the first that asks."""
    if not isinstance(transfers, Transfers):
        return make(transfers)
    known: dict[Any, Any] = vars(transfers)  # by function: names alone may be those of others
    if make not in known:
        known[make] = make(transfers)
    found: Made = known[make]
    return found


class Averaged(NamedTuple):
    """When a rank averages the gradient of ``stage`` over the replicas of the pipeline, in ms."""

    stage: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """When each op runs: ``start[r][i]`` and ``end[r][i]`` are those of rank r's i-th op.

    ``peak_memory`` is the largest sum of M_B and M_W held, one number per rank;
    ``transfers`` is (number of transfers, 2), start and end of each. ``beside``: where each
    rank's order has O's and L's, which do not occupy it; empty where there are none.
    ``averages``: of each rank, in their order; empty where there are no replicas.
    """

    start: tuple[FloatArray, ...]
    end: tuple[FloatArray, ...]
    peak_memory: tuple[float, ...]
    transfers: FloatArray
    beside: tuple[Sequence[int], ...] = ()
    averages: tuple[tuple[Averaged, ...], ...] = ()

    @property
    def took(self) -> tuple[FloatArray, ...]:
        """How long each op of each rank takes."""
        return tuple(end - start for start, end in zip(self.start, self.end, strict=True))

    @property
    def spans(self) -> tuple[float, ...]:
        """Time of each rank from its first op's start to its last op's end."""
        return tuple(
            float(end[-1] - start[0]) if len(start) else 0.0
            for start, end in zip(self.start, self.end, strict=True)
        )

    @property
    def averaged_spans(self) -> tuple[float, ...]:
        """The same until all that the rank averages is averaged."""
        rows = self.averages or ((),) * len(self.start)
        return tuple(
            max([span, *(one.end - float(start[0]) for one in row)]) if len(start) else 0.0
            for span, start, row in zip(self.spans, self.start, rows, strict=True)
        )

    @property
    def period(self) -> float:
        return max(self.spans)

    @property
    def makespan(self) -> float:
        last = max(float(end[-1]) for end in self.end if len(end))
        return last - min(float(start[0]) for start in self.start if len(start))

    @property
    def work(self) -> float:
        """The summed duration of ops that occupy a rank; those that run at once count once."""
        beside = self.beside or ((),) * len(self.start)
        rows = zip(self.start, self.end, beside, strict=True)
        return float(sum(_busy(np.delete(a, at), np.delete(b, at)) for a, b, at in rows))

    def cost(self, objective: Objective) -> float:
        return self.period if objective is Objective.PERIOD else self.makespan

    def iteration_time(self, objective: Objective) -> float:
        """Milliseconds of one iteration by itself, by ``objective``, until all gradients are
        averaged; without replicas it is :meth:`cost`.

        Where iterations follow each other and share the wires, a step takes
        :func:`pipeloom.ir.cost.steady_state.steady_state.step_time`.
        """
        if objective is Objective.PERIOD:
            return max(self.averaged_spans)
        last = [one.end for row in self.averages for one in row]
        first = min(float(start[0]) for start in self.start if len(start))
        return max([first + self.makespan, *last]) - first

    def exposed(self, objective: Objective) -> float:
        """Exposed gradient averaging: what it adds to the cost; ops hide the rest of it."""
        return self.iteration_time(objective) - self.cost(objective)

    def bubble_rate(self, objective: Objective) -> float:
        """``1 - work / (P * cost)``; 0 where nothing takes any time."""
        total = len(self.start) * self.cost(objective)
        return 1.0 - self.work / total if total > 0 else 0.0


def _busy(start: FloatArray, end: FloatArray) -> float:
    """Busy time of a rank whose ops begin once the one before ends, or together with it."""
    alone = np.maximum(start, np.concatenate([start[:1], end[:-1]]))
    return float(np.sum(np.maximum(end - alone, 0.0)))


def gap_between(cost: float, bound: float) -> float:
    """(cost - bound) / cost; 0 where nothing takes time."""
    return max(0.0, (cost - bound) / cost) if cost > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """How a schedule came to be and how good it is known to be; unknown is None.

    ``family``: the published family whose schedule it is, or :data:`OPTIMIZED`. ``method``: what
    found the order; ``bound``: the argument of the lower bound.
    """

    objective: Objective
    family: str
    status: Status = Status.FEASIBLE
    lower_bound: float | None = None
    bound: str | None = None
    solver: str | None = None
    solve_seconds: float | None = None
    seed: int | None = None
    method: str | None = None

    @property
    def known_bound(self) -> float:
        """The lower bound, in ms. Raises ValueError where none is known."""
        return _known(self.lower_bound, "lower bound")


_Known = TypeVar("_Known")


def _known(value: _Known | None, what: str) -> _Known:
    if value is None:
        raise ValueError(f"{what}: expected a known one, got None")
    return value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Schedule:
    """An order of packed ops for each rank; ``timing`` is None until simulated or recorded.

    ``pairs``: of each rank, where in its order an F begins that runs at once with the BW after it
    (:mod:`..cost.overlap`); empty where no rank has any. ``updates``: :func:`staleness` says
    what comes of those after each microbatch.
    """

    problem: Problem
    order: tuple[IntArray, ...]
    transfers: tuple[Transfer, ...] = ()
    report: Report | None = None
    timing: Timing | None = None
    pairs: tuple[tuple[int, ...], ...] = ()
    updates: Updates = Updates.ITERATION

    def __post_init__(self) -> None:
        if not isinstance(self.transfers, Transfers):
            object.__setattr__(self, "transfers", Transfers(self.transfers))

    @classmethod
    def of(
        cls, problem: Problem, order: Sequence[Iterable[Op] | IntArray], family: str
    ) -> Schedule:
        """A schedule from each rank's ops, packed or not."""
        return cls(
            problem,
            tuple(ops if isinstance(ops, np.ndarray) else pack(ops) for ops in order),
            report=Report(problem.objective, family, method=family),
        )

    def __repr__(self) -> str:
        problem, family = self.problem, self.report.family if self.report else ""
        sizes = (problem.ranks, "rank"), (problem.stages, "stage"), (self.num_ops, "op")
        words = [family, problem.placement.name, *(counted(*size) for size in sizes)]
        return f"Schedule({', '.join(filter(None, words))})"

    @property
    def known_timing(self) -> Timing:
        """The timing. Raises ValueError of a schedule that was not simulated or recorded."""
        return _known(self.timing, "timing")

    @property
    def known_report(self) -> Report:
        """The report. Raises ValueError where there is none."""
        return _known(self.report, "report")

    def ops(self, rank: int) -> list[Op]:
        """The ops of a rank, in its order."""
        return unpack(self.order[rank])

    def op_times(self) -> Iterator[tuple[Op, float]]:
        """Each op, and how long it takes, in ms. Raises ValueError without a timing."""
        for row, took in zip(self.order, self.known_timing.took, strict=True):
            yield from zip(unpack(row), took.tolist(), strict=True)

    @property
    def streamed(self) -> set[int]:
        """The stages whose weights or gradients are sent, to ranks that do not own them."""
        return {transfer.stage for transfer in self.transfers}

    @property
    def num_ops(self) -> int:
        """How many ops all ranks have together."""
        return sum(map(len, self.order))


def staleness(schedule: Schedule) -> tuple[int, ...]:
    """The number of updates by which a microbatch's gradient lags at most, of each stage, (S,)."""
    return tuple(
        max((now - used for used, now, _ in _uses(schedule, stage)), default=0)
        for stage in range(schedule.problem.stages)
    )


def versions(schedule: Schedule) -> tuple[int, ...]:
    """The number of versions of each stage's weights that are kept at most at one time, (S,)."""
    return tuple(
        max((kept for _, _, kept in _uses(schedule, stage)), default=1)
        for stage in range(schedule.problem.stages)
    )


def refuse_where_stale(schedule: Schedule, **options: object) -> None:
    """Raises InputError for an option that needs all gradients, where updates come before."""
    if schedule.updates is Updates.ITERATION:
        return
    for name, value in options.items():
        if value:
            raise InputError(
                f"{name}: expected none where updates come after each microbatch, got {value}"
            )


def _uses(schedule: Schedule, stage: int) -> Iterator[tuple[int, int, int]]:
    """Before each update of ``stage``: the version that it is computed with, the newest one, and
    how many are kept: those that microbatches under way use, the newest, and the one being made.
    """
    if schedule.updates is Updates.ITERATION:
        return
    used: dict[int, int] = {}  # by microbatch, from its F on
    now = 0
    for op in _ops(schedule, stage):
        if op.kind is OpKind.F:
            used[op.microbatch] = now
        elif op.kind in (OpKind.W, OpKind.BW):
            version = used.pop(op.microbatch)
            yield version, now, len({*used.values(), now + 1})
            now += 1


def _ops(schedule: Schedule, stage: int) -> Iterator[Op]:
    for rank in range(schedule.problem.ranks):
        yield from (op for op in schedule.ops(rank) if op.stage == stage)
