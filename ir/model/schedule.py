"""The schedule: the order of ops on each rank, its timing and its report.

If the optimizer steps after each microbatch, ranks keep several versions of the weights. A
microbatch's B uses the weights that its F used, which are kept until then (weight stashing,
PipeDream, 2019). The gradient is then applied to newer weights than those that it was computed
with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import Field, ValidationInfo

from ..documents.fields import Amount, Count, Number, Words
from ..documents.struct import Struct
from ..errors import InputError
from ..units import counted
from .ops import FloatArray, IntArray, Op, OpKind, pack, unpack
from .problem import Objective, Problem

Made = TypeVar("Made")


OPTIMIZED = "optimized"
"""The value of :attr:`Report.family` for a schedule that no published family has created."""


_FORMER_KEYS = {"bound_name": "bound", "step": "iteration_time"}
_FORMER_BOUNDS = {
    "lanes": "crossings-search",
    "levers-head": "remat-head",
    "levers-throughput": "remat-throughput",
}
_FORMER_METHODS = (  # before 0.2.0 there was no ``method``; these were families
    "search", "warm-start", "periodic", "backward-tail", "unrolled", "enumeration", "cp-sat", "ilp",
    "one-at-a-time",
)  # fmt: skip


class Status(StrEnum):
    """``OPTIMAL`` if the gap between cost and lower bound is at most 1e-6, else ``FEASIBLE``."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


class Updates(Enum):
    """When the optimizer steps: once per iteration, or after each microbatch's gradient."""

    ITERATION = "iteration"
    MICROBATCH = "microbatch"


class TransferKind(StrEnum):
    """The content of a transfer: a stage's weights, or their (partial) gradient."""

    WEIGHT = "weight"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Transfer(Struct):
    """A message with a copy of a stage's weights, or with their gradient.

    After the transfer, the sender can still use weights that it has sent. A gradient that is sent
    is the sum of all gradients added to it so far; gradients that the sender computes later are
    added to the next gradient of the stage that it sends. ``copy`` distinguishes copies of one
    tensor that are in use at the same time; the transfers of a copy are listed in the order in
    which they happen.

    The transfer starts when the previous transfer of its copy has ended, the first ``after`` ops of
    rank ``source`` are done, and the first ``room`` ops of rank ``target`` are done (from then on,
    ``target`` has a buffer for the tensor). ``before``: the position in ``target``'s order of the
    first op that needs the tensor, or the number of ``target``'s ops if none needs it. ``blocks``:
    the position in ``source``'s order of the first op that waits until the transfer has ended; None
    if no op does.
    """

    kind: Annotated[TransferKind, Field(alias="tensor")]
    stage: Count
    copy: Count
    source: Annotated[Count, Field(alias="from")]
    target: Annotated[Count, Field(alias="to")]
    after: Count
    before: Count
    room: Count = 0
    blocks: Count | None = None

    @property
    def item(self) -> tuple[TransferKind, int, int]:
        """The tensor that is sent, as (kind, stage, copy)."""
        return self.kind, self.stage, self.copy

    def __str__(self) -> str:
        return (
            f"{self.kind.value} {self.stage} copy {self.copy} from rank {self.source} to "
            f"{self.target}"
        )


class Transfers(tuple[Transfer, ...]):
    """The transfers of a schedule, with a cache of values derived from them (:func:`once`).

    Schedules that differ only in their times share one object, and thus the cache.
    """

    def __reduce__(self) -> tuple[type[Transfers], tuple[tuple[Transfer, ...]]]:
        return Transfers, (tuple(self),)


def once(transfers: Sequence[Transfer], make: Callable[[Sequence[Transfer]], Made]) -> Made:
    """Return ``make(transfers)``, cached if ``transfers`` is a :class:`Transfers` object.

    The cache is part of that object. For other sequences, ``make`` is called each time.
    """
    if not isinstance(transfers, Transfers):
        return make(transfers)
    known: dict[Any, Any] = vars(transfers)  # by function: names are not unique
    if make not in known:
        known[make] = make(transfers)
    found: Made = known[make]
    return found


@dataclass(frozen=True, slots=True)
class Averaged(Struct):
    """The interval, in ms, in which a rank averages a stage's gradient over the replicas."""

    stage: Count
    start: Amount
    end: Amount


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """The times of ops, in ms: ``start[r][i]`` and ``end[r][i]`` are those of rank r's i-th op.

    ``peak_memory``: the largest sum of M_B's and M_W's that each rank holds at a time, (P,).
    ``transfers``: start and end of each of the T transfers, in ms, (T, 2). ``beside``: for each
    rank, the positions in its order of O and L ops, which do not occupy the rank; an empty tuple if
    no rank has any. ``averages``: for each rank, the intervals in which it averages gradients over
    the replicas, in order; an empty tuple without replicas.
    """

    start: tuple[FloatArray, ...]
    end: tuple[FloatArray, ...]
    peak_memory: tuple[float, ...]
    transfers: FloatArray
    beside: tuple[Sequence[int], ...] = ()
    averages: tuple[tuple[Averaged, ...], ...] = ()

    @property
    def took(self) -> tuple[FloatArray, ...]:
        """The duration of each op, in ms: one array per rank, in the rank's order."""
        return tuple(end - start for start, end in zip(self.start, self.end, strict=True))

    @property
    def spans(self) -> tuple[float, ...]:
        """Time from the start of each rank's first op to the end of its last op, in ms, (P,)."""
        return tuple(
            float(end[-1] - start[0]) if len(start) else 0.0
            for start, end in zip(self.start, self.end, strict=True)
        )

    @property
    def averaged_spans(self) -> tuple[float, ...]:
        """:attr:`spans`, extended to the end of the rank's last gradient average, in ms, (P,)."""
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
        """The sum over all ranks, in ms, of the time in which ops occupy the rank.

        O and L do not occupy it. While two ops of a pair overlap, the time counts once.
        """
        beside = self.beside or ((),) * len(self.start)
        rows = zip(self.start, self.end, beside, strict=True)
        return float(sum(_busy(np.delete(a, at), np.delete(b, at)) for a, b, at in rows))

    def cost(self, objective: Objective) -> float:
        return self.period if objective is Objective.PERIOD else self.makespan

    def iteration_time(self, objective: Objective) -> float:
        """Milliseconds of a single iteration, until all gradients are averaged over the replicas.

        It is defined like the objective: the largest span of a rank (period), or from the first
        start to the last end on any rank (makespan). Without replicas it equals :meth:`cost`. For
        consecutive iterations, in which messages contend for wires, see
        :func:`pipeloom.ir.cost.steady_state.steady_state.step_time`.
        """
        if objective is Objective.PERIOD:
            return max(self.averaged_spans)
        last = [one.end for row in self.averages for one in row]
        first = min(float(start[0]) for start in self.start if len(start))
        return max([first + self.makespan, *last]) - first

    def exposed(self, objective: Objective) -> float:
        """Milliseconds that gradient averaging adds to the cost; the rest overlaps with ops."""
        return self.iteration_time(objective) - self.cost(objective)

    def bubble_rate(self, objective: Objective) -> float:
        """The idle share of the ranks' time, ``1 - work / (P * cost)``; 0 if the cost is 0."""
        total = len(self.start) * self.cost(objective)
        return 1.0 - self.work / total if total > 0 else 0.0


def _busy(start: FloatArray, end: FloatArray) -> float:
    """The time in ms in which at least one op runs; ``start``, ``end``: times of one rank's ops.

    Each op must start when the previous op has ended, or together with the previous op.
    """
    alone = np.maximum(start, np.concatenate([start[:1], end[:-1]]))
    return float(np.sum(np.maximum(end - alone, 0.0)))


def gap_between(cost: float, bound: float) -> float:
    """The relative gap ``(cost - bound) / cost``, but not below 0; 0 if the cost is 0."""
    return max(0.0, (cost - bound) / cost) if cost > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Report(Struct):
    """How a schedule was found, and its proven quality; unknown values are None.

    ``family``: the published family of the schedule, or :data:`OPTIMIZED`. ``method``: the method
    that found the order. ``solver``, ``solve_seconds``, ``seed``: the solver that was used, its
    time, and the seed of the search. ``bound``: the name of the argument that proves
    ``lower_bound`` (ms). ``period`` and all fields listed after it follow from the times
    (:class:`Timing`); they are only set in files.
    """

    objective: Objective
    family: Words
    status: Status = Status.FEASIBLE
    lower_bound: Amount | None = None
    bound: Words | None = None
    solver: Words | None = None
    solve_seconds: Amount | None = None
    seed: Count | None = None
    method: Words | None = None
    period: Number | None = field(default=None, compare=False)
    makespan: Number | None = field(default=None, compare=False)
    bubble_rate: Number | None = field(default=None, compare=False)
    gap: Number | None = field(default=None, compare=False)
    peak_memory: tuple[Amount, ...] | None = field(default=None, compare=False)
    iteration_time: Number | None = field(default=None, compare=False)

    @classmethod
    def _before(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Replace keys and names of bounds that older files use by the current ones."""
        found = {"objective": "period", "family": ""} | {
            _FORMER_KEYS.get(key, key): value for key, value in data.items() if value is not None
        }
        if "method" not in found and found["family"] in _FORMER_METHODS:
            found |= {"family": OPTIMIZED, "method": found["family"]}
        bound = found.get("bound")
        return found | {"bound": _FORMER_BOUNDS.get(str(bound), bound)}

    @property
    def known_bound(self) -> float:
        """The lower bound, in ms. Raises ValueError if it is unknown."""
        return _known(self.lower_bound, "lower bound")


_Known = TypeVar("_Known")


def _known(value: _Known | None, what: str) -> _Known:
    if value is None:
        raise ValueError(f"{what}: expected a known one, got None")
    return value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Schedule:
    """The order of ops on each rank (packed), and the transfers of weights and gradients.

    ``timing`` is None until the schedule is simulated or measured. ``pairs``: for each rank, the
    positions in its order of the F's that run at the same time as the BW that follows them
    (:mod:`..cost.overlap`); an empty tuple if there are no pairs. ``updates``: when the optimizer
    steps; if it steps after each microbatch, gradients are stale (:func:`staleness`).
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
        """Return the schedule with these ops on each rank, :class:`Op` objects or packed.

        It has no timing, and its report has ``family`` both as the family and as the method.
        """
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
        """The timing. Raises ValueError if the schedule was neither simulated nor measured."""
        return _known(self.timing, "timing")

    @property
    def known_report(self) -> Report:
        """The report. Raises ValueError if there is none."""
        return _known(self.report, "report")

    def ops(self, rank: int) -> list[Op]:
        """The ops of ``rank`` as :class:`Op` objects, in order."""
        return unpack(self.order[rank])

    def op_times(self) -> Iterator[tuple[Op, float]]:
        """Yield each op of all ranks and its duration in ms. Raises ValueError without a timing."""
        for row, took in zip(self.order, self.known_timing.took, strict=True):
            yield from zip(unpack(row), took.tolist(), strict=True)

    @property
    def streamed(self) -> set[int]:
        """The stages whose weights or gradients are sent to ranks that do not own them."""
        return {transfer.stage for transfer in self.transfers}

    @property
    def num_ops(self) -> int:
        """The number of ops of all ranks."""
        return sum(map(len, self.order))


def staleness(schedule: Schedule) -> tuple[int, ...]:
    """The staleness of each stage, (S,), as a number of optimizer steps.

    It is the largest number of steps of the stage between a microbatch's F and the step that
    applies the microbatch's gradient; 0 if the optimizer steps once per iteration.
    """
    return tuple(
        max((now - used for used, now, _ in _uses(schedule, stage)), default=0)
        for stage in range(schedule.problem.stages)
    )


def versions(schedule: Schedule) -> tuple[int, ...]:
    """The maximum number of versions of each stage's weights that are kept at a time, (S,)."""
    return tuple(
        max((kept for _, _, kept in _uses(schedule, stage)), default=1)
        for stage in range(schedule.problem.stages)
    )


def refuse_where_stale(schedule: Schedule, **options: object) -> None:
    """Raise InputError if any of ``options`` is set and the optimizer steps after each microbatch.

    ``options``: the values, by name, of options that need the gradients of all microbatches before
    the first optimizer step.
    """
    if schedule.updates is Updates.ITERATION:
        return
    for name, value in options.items():
        if value:
            raise InputError(
                f"{name}: expected none where updates come after each microbatch, got {value}"
            )


def _uses(schedule: Schedule, stage: int) -> Iterator[tuple[int, int, int]]:
    """Yield three numbers for each optimizer step of ``stage``, if there is one per microbatch.

    These are the version of the weights with which the step's gradient was computed, the newest
    version before the step, and the number of versions that are kept: the one that the step
    creates, and the versions used by other microbatches that are between F and W. Yields nothing if
    the optimizer steps once per iteration.
    """
    if schedule.updates is Updates.ITERATION:
        return
    used: dict[int, int] = {}  # version by microbatch, from its F to its W
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
