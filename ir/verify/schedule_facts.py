"""The contents of a schedule document, in the form that all verifiers use.

This module does not use Schedule, Problem, Costs or the simulator. It shares only the declaration
of the document's shape (:mod:`..formats.schedule_document`) with the code that the verifiers check,
so that an error in that code is noticed. A document of another shape is wrong input (InputError),
not an invalid schedule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..documents.validation import validated
from ..errors import InputError
from ..formats.schedule_document import OpEntry, Report, ScheduleDocument, TimedTransfer
from ..model.profile import Link, StageProfile
from .network_facts import Network, read_network

_REPORT = (
    "objective", "period", "makespan", "bubble_rate", "lower_bound", "gap", "status", "peak_memory",
)  # fmt: skip

_CHOICES = {"objective": "period or makespan", "status": "optimal or feasible"}


class Run(NamedTuple):
    """An op in the document, with its rank, its position ``at`` in the rank's list, and its times.

    ``start`` and ``end`` are in ms.
    """

    rank: int
    at: int
    kind: str
    stage: int
    microbatch: int
    start: float
    end: float

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True, slots=True)
class MicrobatchFacts:
    """Times and sizes of one microbatch on a stage.

    ``durations``: the time of each kind of op, in ms; without ``R`` if the stage cannot be
    recomputed, without ``O`` and ``L`` if it cannot be offloaded. ``m_r``, ``m_o``: memory kept if
    the microbatch is recomputed or offloaded, None if that is not possible.
    """

    durations: dict[str, float]
    m_b: float
    m_w: float
    m_r: float | None
    m_o: float | None
    activation_bytes: float


@dataclass(frozen=True, slots=True)
class Facts:
    """A schedule document and the values that verifiers derive from it.

    ``plan``: the document. ``limit``: each rank's memory limit, infinite if there is none.
    ``order``: the ops of each rank, in order. ``pairs``: for each rank, the positions of the F's
    that run at the same time as the next op. ``moves``: the transfers. ``first``: the first op of
    each (kind, stage, microbatch) in the document; a BW is entered as a B and as a W. ``each``: for
    each stage, the times and sizes of its microbatches; a single entry applies to all microbatches.
    """

    plan: ScheduleDocument
    report: Report
    network: Network
    limit: tuple[float, ...]
    order: list[list[Run]]
    pairs: list[list[int]]
    moves: list[TimedTransfer]
    first: dict[tuple[str, int, int], Run]
    each: list[list[MicrobatchFacts]]

    def stage(self, stage: int) -> StageProfile:
        return self.plan.profile.stages[stage]

    def at(self, stage: int, microbatch: int) -> MicrobatchFacts:
        """The times and sizes of ``microbatch`` on ``stage``."""
        each = self.each[stage]
        return each[microbatch if len(each) > 1 else 0]

    def duration(self, run: Run) -> float:
        return self.at(run.stage, run.microbatch).durations.get(run.kind, 0.0)

    def partner(self, run: Run) -> Run | None:
        """The other op of the pair that ``run`` belongs to; None if ``run`` is not in a pair."""
        places, row = self.pairs[run.rank], self.order[run.rank]
        if run.at in places:
            return row[run.at + 1]
        return row[run.at - 1] if run.at - 1 in places else None

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.order for run in row]


def read_facts(document: object, where: str) -> Facts:
    """Validate and read a schedule document; ``where`` names its file.

    Raises InputError with every fault of the document's shape.
    """
    return schedule_facts(validated(ScheduleDocument, document, where), document, where)


def schedule_facts(plan: ScheduleDocument, given: Any, where: str) -> Facts:
    """The facts of the schedule document ``given``, which was validated as ``plan``.

    ``where``: the name of the file. Raises InputError for each missing key that only verifiers
    need.
    """
    lacking = _lacking(given)
    if plan.report is None or lacking:
        raise InputError(*(f"{where}: {line}" for line in lacking))
    order = [
        [_run(rank, at, op) for at, op in enumerate(row)] for rank, row in enumerate(plan.order)
    ]
    return Facts(
        plan,
        plan.report,
        read_network(plan.profile),
        plan.memory_limit or (math.inf,) * plan.ranks,
        order,
        plan.pairs or [[] for _ in order],
        [replace(move, place=place) for place, move in enumerate(plan.transfers or ())],
        _first_runs(order),
        [_each(stage, plan.profile.host_link) for stage in plan.profile.stages],
    )


def _first_runs(order: list[list[Run]]) -> dict[tuple[str, int, int], Run]:
    first: dict[tuple[str, int, int], Run] = {}
    for run in (run for row in order for run in row):
        for kind in ("B", "W") if run.kind == "BW" else (run.kind,):
            first.setdefault((kind, run.stage, run.microbatch), run)
    return first


def _lacking(given: Mapping[str, Any]) -> list[str]:
    """A line for each key that verifiers need and that is missing or null in ``given``.

    Only keys that other readers of schedule documents do not need are checked.
    """
    lines = []
    if "memory_limit" not in given:  # null means unlimited
        lines.append("memory_limit: missing; expected one number per rank, or null")
    report = given.get("report")
    if report is None:
        words = (
            "expected an object, got null" if "report" in given else "missing; expected an object"
        )
        return [*lines, f"report: {words}"]
    for key in _REPORT:
        if key not in report:
            lines.append(f"report: {key}: missing; expected a value, or null")
        elif report[key] is None and key in _CHOICES:
            lines.append(f"report: {key}: expected {_CHOICES[key]}, got null")
    return lines


def _run(rank: int, at: int, op: OpEntry) -> Run:
    return Run(rank, at, op["op"], op["stage"], op["microbatch"], op["start"], op["end"])


def _each(stage: StageProfile, host: Link | None) -> list[MicrobatchFacts]:
    """The facts of each microbatch on ``stage``, or a single entry if microbatches are alike."""
    return [_of_microbatch(one, host) for one in stage.each or (stage,)]


def _of_microbatch(one: StageProfile, host: Link | None) -> MicrobatchFacts:
    fused = one.t_b + one.t_w if one.t_bw is None else one.t_bw
    times = {"F": one.t_f, "B": one.t_b, "W": one.t_w, "BW": fused}
    if one.t_r is not None:
        times["R"] = one.t_r
    if host is not None and one.m_o is not None:
        moved = one.m_b - one.m_o if one.offload_bytes is None else one.offload_bytes
        times["O"] = times["L"] = host.latency + moved / 1e6 / host.gigabytes_per_second
    return MicrobatchFacts(times, one.m_b, one.m_w, one.m_r, one.m_o, one.activation_bytes or 0.0)
