"""A program document as plain facts: what its verifier reads. It shares no parser with the
compiler."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ..formats.json_reader import Reader
from ..units import counted
from .schedule_facts import Facts, Run, read_facts


class Named(NamedTuple):
    """A tensor that travels: ``x1.0`` is ("x", 1, 0); the last is a microbatch, or a transfer."""

    kind: str
    stage: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.number}"


class Line(NamedTuple):
    """One instruction, with what of it there is."""

    rank: int
    at: int
    text: str
    verb: (
        str  # recv, send, wait recv, wait send, free, compute, reduce, average, step, sums, verdict
    )
    tensor: Named = Named("", 0, 0)
    peer: int = 0
    buffer: int = 0
    op: str = ""
    stages: tuple[int, ...] = ()
    source: int | None = None  # of a relay, as is target
    target: int | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} instruction {self.at} ({self.text})"


class Move(NamedTuple):
    """One transfer of the schedule: a copy of a stage's weights or gradient between two ranks."""

    tensor: str
    stage: int
    copy_number: int
    source: int
    target: int
    after: int


Message = tuple[int, int]  # from rank, to rank


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """A program document. ``buffers``: (kind, stage) of each; ``owners``: the ranks that step each
    stage.

    ``messages``: what must travel, from the schedule alone. ``homes``: where each op first runs,
    a BW under B and W as well. ``earlier``, ``later``: of a transfer, the one
    before and the one after it on its copy's way.
    """

    schedule: Facts
    lines: list[list[Line]]
    buffers: list[list[tuple[str, int]]]
    homes: dict[tuple[str, int, int], Run]
    moves: list[Move]
    messages: dict[Named, Message]
    owners: dict[int, tuple[int, ...]]
    earlier: dict[int, int]
    later: dict[int, int]


def read_program(document: object, where: str) -> ProgramFacts:
    """The facts of ``document``. Raises InputError with every fault of its shape."""
    reader = Reader(document, where, [])
    reader.format("pipeloom.program")
    plan = reader.child("schedule").data
    reader.finish()
    schedule = read_facts(plan, f"{where}: schedule")
    lines = [
        [_line(reader, rank, at, text) for at, text in enumerate(texts)]
        for rank, texts in enumerate(_lists(reader, "instructions", schedule.ranks))
    ]
    buffers = [
        [_buffer(reader, rank, at, text) for at, text in enumerate(texts)]
        for rank, texts in enumerate(_lists(reader, "buffers", schedule.ranks))
    ]
    reader.finish()
    moves = _moves(plan)
    homes = _homes(schedule)
    later = _later(moves)
    earlier = {after: before for before, after in later.items()}
    messages = _activations(homes, schedule) | {
        Named("w" if m.tensor == "weight" else "dw", m.stage, i): (m.source, m.target)
        for i, m in enumerate(moves)
    }
    return ProgramFacts(
        schedule, lines, buffers, homes, moves, messages, _owners(schedule, moves), earlier, later
    )


def _lists(reader: Reader, key: str, ranks: int) -> list[list[Any]]:
    def accept(value: Any) -> bool:
        lists = value if isinstance(value, list) else []
        return len(lists) == ranks and all(isinstance(entry, list) for entry in lists)

    return reader.get(key, f"{counted(ranks, 'list')}, one a rank", accept, [])


_NAMED = r"(?P<kind>x|dy|w|dw)(?P<stage>[0-9]{1,9})\.(?P<index>[0-9]{1,9})"
_ENDS = "(?: from (?P<source>[0-9]{1,9}))?(?: to (?P<target>[0-9]{1,9}))?"
_FORMS = {
    "recv": rf"recv {_NAMED} from (?P<peer>[0-9]{{1,9}}) into (?P<buffer>[0-9]{{1,9}})",
    "send": rf"send {_NAMED} to (?P<peer>[0-9]{{1,9}})",
    "wait recv": rf"wait recv {_NAMED}",
    "wait send": rf"wait send {_NAMED}",
    "free": rf"free {_NAMED}",
    "compute": r"(?P<op>[0-9]{1,9}(?:F|BW|B|W|R|O|L)[0-9]{1,9})",
    "reduce": r"reduce (?P<stages>[0-9]{1,9}(?: [0-9]{1,9})*)",
    "average": r"average (?P<stages>[0-9]{1,9})",
    "step": r"step (?P<stages>[0-9]{1,9})",
    "sums": rf"relay sums{_ENDS}",
    "verdict": rf"relay verdict{_ENDS}",
}


def _line(reader: Reader, rank: int, at: int, text: object) -> Line:
    for verb, form in _FORMS.items():
        match = re.fullmatch(form, text) if isinstance(text, str) else None
        if match:
            parts = match.groupdict()
            named = (
                Named(parts["kind"], int(parts["stage"]), int(parts["index"]))
                if "kind" in parts
                else Named("", 0, 0)
            )
            return Line(
                rank,
                at,
                match[0],
                verb,
                named,
                int(parts.get("peer", 0)),
                int(parts.get("buffer", 0)),
                parts.get("op", ""),
                tuple(map(int, parts.get("stages", "").split())),
                *(int(parts[end]) if parts.get(end) else None for end in ("source", "target")),
            )
    reader.wrong(
        f"instructions[{rank}][{at}]", text, "an instruction, such as 'recv x1.0 from 0 into 3'"
    )
    return Line(rank, at, "", "compute")


def _buffer(reader: Reader, rank: int, at: int, text: object) -> tuple[str, int]:
    match = re.fullmatch(r"(x|dy|w|dw)([0-9]{1,9})", text) if isinstance(text, str) else None
    if match:
        return match[1], int(match[2])
    reader.wrong(f"buffers[{rank}][{at}]", text, "a kind and a stage, such as 'dy1'")
    return "", 0


def _moves(schedule: dict[str, Any]) -> list[Move]:
    keys = ("tensor", "stage", "copy", "from", "to", "after")
    return [Move(*(entry[key] for key in keys)) for entry in schedule.get("transfers") or []]


def _homes(schedule: Facts) -> dict[tuple[str, int, int], Run]:
    homes: dict[tuple[str, int, int], Run] = {}
    for run in schedule.runs:
        for kind in ("B", "W") if run.kind == "BW" else (run.kind,):
            homes.setdefault((kind, run.stage, run.microbatch), run)
    return homes


def _activations(homes: dict[tuple[str, int, int], Run], schedule: Facts) -> dict[Named, Message]:
    """The inputs of F's and B's that are made on another rank."""
    messages: dict[Named, Message] = {}
    for (kind, s, j), run in homes.items():
        source = {"F": ("F", s - 1, j), "B": ("B", s + 1, j)}.get(kind)
        made = homes.get(source) if source else None
        if made and made.rank != run.rank:
            messages[Named("x" if kind == "F" else "dy", s, j)] = made.rank, run.rank
    return messages


def _later(moves: list[Move]) -> dict[int, int]:
    journeys: defaultdict[tuple[str, int, int], list[int]] = defaultdict(list)
    for i, move in enumerate(moves):
        journeys[move.tensor, move.stage, move.copy_number].append(i)
    return {before: after for journey in journeys.values() for before, after in pairwise(journey)}


def _owners(schedule: Facts, moves: list[Move]) -> dict[int, tuple[int, ...]]:
    """Who steps each stage: where its weights set out, or its gradient ends, or all who run it."""
    owners: dict[int, tuple[int, ...]] = {}
    for move in moves:
        if move.tensor == "weight":
            owners.setdefault(move.stage, (move.source,))
    for move in reversed(moves):
        if move.tensor == "gradient":
            owners.setdefault(move.stage, (move.target,))
    users: defaultdict[int, set[int]] = defaultdict(set)
    for run in schedule.runs:
        users[run.stage].add(run.rank)
    return {stage: tuple(sorted(ranks)) for stage, ranks in users.items()} | owners
