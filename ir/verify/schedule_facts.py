"""A schedule document as plain facts: what the verifiers read, and all they take from others.

Nothing here knows Schedule, Problem, Costs or the simulator; only JSON is read, so that the checks
built on it can disagree with the code they check. A document of another shape is no schedule at
all: it is wrong input, not an invalid schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..formats.json_reader import Reader, is_amount, is_count
from ..units import counted
from .network_facts import Network, read_network

KINDS = ("F", "B", "W", "BW", "R", "O", "L")
PASSINGS = ("activations", "weights", "mixed")
TENSORS = ("weight", "gradient")
UPDATES = ("iteration", "microbatch")
_REPORT = (
    "objective",
    "period",
    "makespan",
    "bubble_rate",
    "lower_bound",
    "gap",
    "status",
    "peak_memory",
)


class Run(NamedTuple):
    """One op where and when the document has it; ``at`` is its place in its rank's list."""

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
class StageFacts:
    """One stage's times in ms, its memory, and the bytes of its output and its weights.

    Unknown bytes are 0, those of its gradient None; ``t_r``, ``m_r``, ``t_o`` and ``m_o`` are None
    where the stage cannot.
    """

    t_f: float
    t_b: float
    t_w: float
    m_b: float
    m_w: float
    t_bw: float
    activation_bytes: float
    weight_bytes: float
    t_fb: float | None = None
    t_r: float | None = None
    m_r: float | None = None
    t_o: float | None = None
    m_o: float | None = None
    grad_bytes: float | None = None

    def duration(self, kind: str) -> float:
        times = {
            **{"F": self.t_f, "B": self.t_b, "W": self.t_w, "BW": self.t_bw},
            **{"R": self.t_r, "O": self.t_o, "L": self.t_o},
        }
        return times[kind] or 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """A schedule document. ``stage_facts`` has one entry that all stages share, or one each."""

    passing: str
    ranks: int
    stages: int
    microbatches: int
    stage_facts: list[StageFacts]
    network: Network
    limit: list[float]
    order: list[list[Run]]
    report: dict[str, Any]
    pairs: list[list[int]]
    updates: str
    tied: list[list[int]]

    def stage(self, stage: int) -> StageFacts:
        return self.stage_facts[stage if len(self.stage_facts) > 1 else 0]

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.order for run in row]


def read_facts(document: object, where: str) -> Facts:
    """The facts of ``document``. Raises InputError with every fault of its shape."""
    reader = Reader(document, where, [])
    reader.format("pipeloom.schedule")
    profile = reader.child("profile")
    profile.format("pipeloom.profile")
    ranks, stages = reader.count("ranks", least=1), reader.count("stages", least=1)
    microbatches = reader.count("microbatches", least=1)
    if profile.count("ranks", least=1) != ranks:
        profile.wrong("ranks", profile.data.get("ranks"), f"{ranks}, as in the schedule")
    passing = reader.get("passing", " or ".join(PASSINGS), lambda v: v in PASSINGS, PASSINGS[0])
    lists = reader.items("order")
    if len(lists) != ranks:
        reader.wrong(
            "order", f"{counted(len(lists), 'list')}", f"{counted(ranks, 'list')}, one a rank"
        )
    reader.finish()  # what follows counts on as many lists as ranks
    stage_facts = _stages(profile, stages)
    network = read_network(profile, ranks)
    order = [_row(reader, rank, entry) for rank, entry in enumerate(lists)]
    facts = Facts(
        passing,
        ranks,
        stages,
        microbatches,
        stage_facts,
        network,
        _limit(reader, ranks),
        order,
        _report(reader),
        _pairs(reader, order),
        _updates(reader),
        _tied(profile, stages),
    )
    _check_range(facts, reader)
    _check_transfers(reader)
    reader.finish()
    return facts


def _stages(profile: Reader, stages: int) -> list[StageFacts]:
    entries = profile.items("stages")
    shared = len(entries) == 1
    number = profile.data.get("ranks") if shared else len(entries)  # one is shared by all ranks
    if profile.has("num_stages"):
        number = profile.count("num_stages", least=1)
    if number != stages or (len(entries) != stages and not shared):
        profile.wrong(
            "stages",
            f"{len(entries)} listed for {number}",
            f"{stages}, as in the schedule",
        )
    host = profile.child("host_link") if profile.has("host_link") else None
    return [
        _stage(Reader(entry, f"{profile.where}: stages[{s}]", profile.errors), host)
        for s, entry in enumerate(entries)
    ]


def _stage(reader: Reader, host: Reader | None) -> StageFacts:
    t_f, t_b, t_w = (reader.number(key) for key in ("t_f", "t_b", "t_w"))
    m_b, m_w = reader.number("m_b"), reader.number("m_w")
    if m_w > m_b:
        reader.wrong("m_w", m_w, f"at most m_b ({m_b:g})")
    activation, weight, gradient, _ = map(
        reader.optional_number,
        ("activation_bytes", "weight_bytes", "grad_bytes", "optimizer_bytes"),
    )
    t_fb, t_r, m_r = (reader.optional_number(key) for key in ("t_fb", "t_r", "m_r"))
    m_o = reader.optional_number("m_o") if host is not None else None
    t_o = None if host is None or m_o is None else _copying(reader, host, m_b - m_o)
    t_bw = reader.optional_number("t_bw")
    fused = t_b + t_w if t_bw is None else t_bw
    more = t_fb, t_r, m_r, t_o, m_o, gradient
    return StageFacts(t_f, t_b, t_w, m_b, m_w, fused, activation or 0.0, weight or 0.0, *more)


def _copying(reader: Reader, host: Reader, difference: float) -> float:
    """Milliseconds that a stage's activations take over the link to the host."""
    given = reader.optional_number("offload_bytes")
    moved = difference if given is None else given
    latency = host.optional_number("latency") or 0.0
    return latency + moved / 1e6 / (host.number("gigabytes_per_second") or 1.0)


def _limit(reader: Reader, ranks: int) -> list[float]:
    if "memory_limit" not in reader.data:  # null says that there is none
        reader.fail(f"{reader.where}: memory_limit: missing; expected one number a rank, or null")
    value = reader.data.get("memory_limit")
    values: Sequence[object] = value if isinstance(value, list) else [value] * ranks
    if len(values) != ranks or not all(v is None or is_amount(v) for v in values):
        reader.wrong("memory_limit", value, f"a finite number >= 0, or a list of {ranks} of them")
        return [math.inf] * ranks
    return [float(v) if isinstance(v, int | float) else math.inf for v in values]


def _row(reader: Reader, rank: int, entries: object) -> list[Run]:
    if not isinstance(entries, list):
        reader.wrong(f"order[{rank}]", entries, "a list of ops")
        return []
    return [
        _run(Reader(entry, f"{reader.where}: order[{rank}][{at}]", reader.errors), rank, at)
        for at, entry in enumerate(entries)
    ]


def _run(reader: Reader, rank: int, at: int) -> Run:
    kind = reader.get("op", "F, B, W, BW, R, O or L", lambda v: v in KINDS, "F")
    stage, microbatch = reader.count("stage"), reader.count("microbatch")
    return Run(rank, at, kind, stage, microbatch, reader.number("start"), reader.number("end"))


def _check_range(facts: Facts, reader: Reader) -> None:
    for run in facts.runs:
        if run.stage >= facts.stages or run.microbatch >= facts.microbatches:
            reader.fail(
                f"{reader.where}: order[{run.rank}][{run.at}]: {run} is outside "
                f"{counted(facts.stages, 'stage')} and {counted(facts.microbatches, 'microbatch')}"
            )


def _report(reader: Reader) -> dict[str, Any]:
    """What the report says, unread; null where it says that something is not known."""
    report = reader.child("report")
    for key in _REPORT:
        report.get(key, "a value, or null", lambda _: True, None)
    return report.data


def _pairs(reader: Reader, order: list[list[Run]]) -> list[list[int]]:
    """The places in each rank's list where a pair begins."""
    if not reader.has("pairs"):
        return [[] for _ in order]
    lists = reader.items("pairs")
    sound = len(lists) == len(order) and all(
        isinstance(places, list)
        and all(is_count(at) and 0 <= at < len(row) - 1 for at in places)
        and len(set(places)) == len(places)
        for places, row in zip(lists, order, strict=True)
    )
    if not sound:
        reader.wrong(
            "pairs", lists, f"{counted(len(order), 'list')}, one a rank, of places in its order"
        )
    return lists if sound else [[] for _ in order]


def _updates(reader: Reader) -> str:
    """When stages are stepped."""
    if not reader.has("updates"):
        return UPDATES[0]
    return reader.get("updates", " or ".join(UPDATES), lambda v: v in UPDATES, UPDATES[0])


def _tied(profile: Reader, stages: int) -> list[list[int]]:
    """The groups of stages that share parameters."""
    groups = profile.items("tied") if profile.has("tied") else []
    for i, group in enumerate(groups):
        sound = isinstance(group, list) and all(is_count(s) and 0 <= s < stages for s in group)
        if not sound or len(set(group)) < max(2, len(group)):
            profile.wrong(f"tied[{i}]", group, f"two or more different stages of 0..{stages - 1}")
    return groups


def _check_transfers(reader: Reader) -> None:
    for i, entry in enumerate(reader.items("transfers") if reader.has("transfers") else []):
        item = Reader(entry, f"{reader.where}: transfers[{i}]", reader.errors)
        item.get("tensor", " or ".join(TENSORS), lambda v: v in TENSORS, TENSORS[0])
        for key in ("stage", "copy", "from", "to", "after", "before"):
            item.count(key)
        for key in ("room", "blocks"):
            if item.has(key):
                item.count(key)
        item.number("start")
        item.number("end")
