"""The contents of a program document, parsed for its verifier without the compiler's code."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from ..documents.validation import validated
from ..formats.schedule_document import ProgramDocument
from ..formats.schedule_document import TimedTransfer as Move
from .schedule_facts import Facts, Run, schedule_facts


class TensorName(NamedTuple):
    """The name of a tensor that is sent: ``x1.0`` is ("x", 1, 0).

    ``number``: the microbatch; for weights and their gradients, the index of the transfer.
    """

    kind: str
    stage: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.number}"


class Line(NamedTuple):
    """One instruction of a program; fields that its kind does not have keep their defaults.

    ``rank``, ``at``: the rank, and the position among its instructions. ``text``: the whole
    instruction. ``verb``: the kind of instruction, such as ``send``, ``wait recv``, ``compute`` or
    ``relay sums``. ``op``: for ``compute``, the op as (kind, stage, microbatch). ``peer``: the
    other rank of a send or receive. ``stages``: the stages of a ``reduce``, or the single stage of
    an ``average`` or ``step``.
    """

    rank: int
    at: int
    text: str
    verb: str
    tensor: TensorName = TensorName("", 0, 0)
    op: tuple[str, int, int] = ("", 0, 0)
    peer: int = 0
    buffer: int = 0
    stages: tuple[int, ...] = ()
    source: int | None = None  # only for relays, like target
    target: int | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} instruction {self.at} ({self.text})"


Message = tuple[int, int]  # from rank, to rank


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """A program document, with values that the verifier derives from it.

    ``lines``, ``buffers``: the instructions and the receive buffers of each rank; a buffer is
    (kind, stage). ``moves``: the schedule's transfers. ``messages``: the tensors that must be sent
    according to the schedule, each with (from rank, to rank). ``owners``: for each stage, the ranks
    that run its optimizer step. ``earlier``, ``later``: for the index of a transfer, that of the
    previous or next transfer of the same copy; the first or last one has no entry.
    """

    schedule: Facts
    lines: list[list[Line]]
    buffers: list[list[tuple[str, int]]]
    moves: list[Move]
    messages: dict[TensorName, Message]
    owners: dict[int, tuple[int, ...]]
    earlier: dict[int, int]
    later: dict[int, int]


def read_program(document: object, where: str) -> ProgramFacts:
    """Validate and read a program document; ``where`` names its file.

    Raises InputError with every fault of the document's shape.
    """
    program = validated(ProgramDocument, document, where)
    given: Any = document
    schedule = schedule_facts(program.schedule, given["schedule"], f"{where}: schedule")
    lines = [
        [_line(rank, at, text) for at, text in enumerate(row)]
        for rank, row in enumerate(program.instructions)
    ]
    buffers = [list(map(_buffer, row)) for row in program.buffers]
    moves = schedule.moves
    later = _later(moves)
    earlier = {after: before for before, after in later.items()}
    messages = _activations(schedule.first) | {
        TensorName("w" if m.kind == "weight" else "dw", m.stage, i): (m.source, m.target)
        for i, m in enumerate(moves)
    }
    owners = _owners(schedule, moves)
    return ProgramFacts(schedule, lines, buffers, moves, messages, owners, earlier, later)


def _line(rank: int, at: int, text: str) -> Line:
    verb, *words = text.split(" ")
    if verb == "wait":
        return Line(rank, at, text, f"{verb} {words[0]}", _tensor(words[1]))
    if verb in ("recv", "send", "free"):
        peer, buffer = (*map(int, words[2::2]), 0, 0)[:2]
        return Line(rank, at, text, verb, _tensor(words[0]), peer=peer, buffer=buffer)
    if verb == "relay":
        ends = {end: int(other) for end, other in zip(words[1::2], words[2::2], strict=True)}
        source, target = ends.get("from"), ends.get("to")
        return Line(rank, at, text, f"{verb} {words[0]}", source=source, target=target)
    if verb in ("reduce", "average", "step"):
        return Line(rank, at, text, verb, stages=tuple(map(int, words)))
    kind = text.strip("0123456789")
    stage, microbatch = text.split(kind)
    return Line(rank, at, text, "compute", op=(kind, int(stage), int(microbatch)))


@lru_cache(1024)
def _tensor(text: str) -> TensorName:
    first, number = text.split(".")
    return TensorName(*_buffer(first), int(number))


def _buffer(text: str) -> tuple[str, int]:
    """The kind of tensor and the stage in the name of a buffer: ("dy", 1) for ``dy1``."""
    kind = text.rstrip("0123456789")
    return kind, int(text[len(kind) :])


def _activations(homes: dict[tuple[str, int, int], Run]) -> dict[TensorName, Message]:
    """The messages with activations and their gradients, as (from rank, to rank) for each tensor.

    There is one for each input of an F or B that another rank computes. ``homes``: for each (kind,
    stage, microbatch), its op with the rank that runs it.
    """
    messages: dict[TensorName, Message] = {}
    for (kind, s, j), run in homes.items():
        source = {"F": ("F", s - 1, j), "B": ("B", s + 1, j)}.get(kind)
        made = homes.get(source) if source else None
        if made and made.rank != run.rank:
            messages[TensorName("x" if kind == "F" else "dy", s, j)] = made.rank, run.rank
    return messages


def _later(moves: list[Move]) -> dict[int, int]:
    journeys: defaultdict[tuple[str, int, int], list[int]] = defaultdict(list)
    for i, move in enumerate(moves):
        journeys[move.item].append(i)
    return {before: after for journey in journeys.values() for before, after in pairwise(journey)}


def _owners(schedule: Facts, moves: list[Move]) -> dict[int, tuple[int, ...]]:
    """For each stage, the ranks that run its optimizer step.

    This is only the rank where the stage's weights start or its gradients end, if they are sent;
    otherwise, all ranks that run the stage, ascending.
    """
    owners: dict[int, tuple[int, ...]] = {}
    for move in moves:
        if move.kind == "weight":
            owners.setdefault(move.stage, (move.source,))
    for move in reversed(moves):
        if move.kind == "gradient":
            owners.setdefault(move.stage, (move.target,))
    users: defaultdict[int, set[int]] = defaultdict(set)
    for run in schedule.runs:
        users[run.stage].add(run.rank)
    return {stage: tuple(sorted(ranks)) for stage, ranks in users.items()} | owners
