"""Checks what travels in a weight-passing schedule, from the raw JSON and nothing else.

For every stage of which anything travels (another one is replicated on the ranks that run it): its
weights set out from one rank, its owner; each copy's transfers join up; every F and B has the
weights, on the owner or in a copy that has come before; every weight gradient that a rank computes
leaves it once, with the next accumulator D that does, or is the owner's own; every D ends at the
owner; and every transfer starts exactly when its rule allows, those over one wire one after the
other as listed, and takes exactly as long as the profile says.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..formats.json_reader import Reader
from ..units import counted
from .network_facts import Network, read_network

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class _Move:
    """One transfer as the file has it."""

    index: int
    tensor: str
    stage: int
    copy: int
    source: int
    target: int
    after: int
    before: int
    room: int
    blocks: int | None
    start: float
    end: float

    def __str__(self) -> str:
        return (
            f"transfers[{self.index}] ({self.tensor} {self.stage} copy {self.copy}, rank "
            f"{self.source} to {self.target})"
        )


def verify_transfers(document: dict[str, Any]) -> list[str]:
    """The violations of the transfers of ``document``, a schedule whose shape is sound.

    Empty where there are none. Whether ops start when transfers allow is part of the ops' own
    rule; :func:`arrivals` says when that is.
    """
    problems: list[str] = []
    moves = _moves(document, problems)
    if problems:
        return problems
    items: dict[tuple[str, int, int], list[_Move]] = defaultdict(list)
    for move in moves:
        items[move.tensor, move.stage, move.copy].append(move)
    for journey in items.values():
        problems += _broken_links(journey)
    for stage in range(document["stages"]):
        weights = [j for (tensor, s, _), j in items.items() if tensor == "weight" and s == stage]
        sums = [j for (tensor, s, _), j in items.items() if tensor == "gradient" and s == stage]
        if not (weights or sums):
            continue  # it is replicated on all ranks that run it
        owner = _owner(stage, weights, sums, problems)
        problems += _missing_weights(document, stage, owner, weights)
        problems += _lost_gradients(document, stage, owner, sums)
    return problems + _wrong_times(document, moves)


def arrivals(document: dict[str, Any]) -> dict[tuple[int, int], float]:
    """By rank and position of an op: when the last transfer that it is the first to wait for
    ends."""
    latest: dict[tuple[int, int], float] = {}
    for move in _moves(document, []):
        waiting = [(move.target, move.before)]
        if move.blocks is not None:
            waiting.append((move.source, move.blocks))
        for key in waiting:
            latest[key] = max(latest.get(key, 0.0), move.end)
    return latest


def _moves(document: dict[str, Any], problems: list[str]) -> list[_Move]:
    moves = []
    for i, entry in enumerate(document.get("transfers") or []):
        wrong = _out_of_range(entry, document)
        if wrong:
            problems.append(f"transfers[{i}]: {wrong}")
        else:
            moves.append(_move(i, entry))
    return moves


def _move(index: int, entry: dict[str, Any]) -> _Move:
    return _Move(
        index,
        entry["tensor"],
        entry["stage"],
        entry["copy"],
        source=entry["from"],
        target=entry["to"],
        after=entry["after"],
        before=entry["before"],
        room=entry.get("room") or 0,
        blocks=entry.get("blocks"),
        start=entry["start"],
        end=entry["end"],
    )


def _out_of_range(entry: dict[str, Any], document: dict[str, Any]) -> str | None:
    ranks, order = document["ranks"], document["order"]
    if max(entry["from"], entry["to"]) >= ranks:
        return f"goes from rank {entry['from']} to {entry['to']} of {counted(ranks, 'rank')}"
    if entry["from"] == entry["to"]:
        return f"goes from rank {entry['from']} to itself"
    if entry["stage"] >= document["stages"]:
        return f"stage: expected less than {document['stages']}, got {entry['stage']}"
    for key, rank in (("after", "from"), ("before", "to"), ("room", "to"), ("blocks", "from")):
        number = len(order[entry[rank]])
        if (entry.get(key) or 0) > number:
            return (
                f"{key}: expected at most {number}, the number of rank {entry[rank]}'s ops, got "
                f"{entry[key]}"
            )
    return None


def _broken_links(journey: list[_Move]) -> list[str]:
    return [
        f"{later}: its copy is on rank {earlier.target} then"
        for earlier, later in pairwise(journey)
        if earlier.target != later.source
    ]


def _owner(
    stage: int, weights: list[list[_Move]], sums: list[list[_Move]], problems: list[str]
) -> int:
    """Where the stage's weights set out; problems where they, or the D's ends, disagree."""
    starts = [(journey[0], journey[0].source) for journey in weights]
    ends = [(journey[-1], journey[-1].target) for journey in sums]
    owner = (starts or ends)[0][1]
    problems += [
        f"{move}: sets out from rank {rank}, but stage {stage} is owned by rank {owner}"
        for move, rank in starts
        if rank != owner
    ]
    problems += [
        f"{move}: ends on rank {rank}, but stage {stage} is owned by rank {owner}"
        for move, rank in ends
        if rank != owner
    ]
    return owner


def _missing_weights(
    document: dict[str, Any], stage: int, owner: int, weights: list[list[_Move]]
) -> list[str]:
    """Ops of ``stage`` that run on a rank while no copy of the weights is there."""
    problems = []
    for rank, row in enumerate(document["order"]):
        came = [m.before for journey in weights for m in journey if m.target == rank]
        for i, entry in enumerate(row):
            if entry["stage"] != stage or entry["op"] == "W" or rank == owner:
                continue
            if not any(before <= i for before in came):
                problems.append(
                    f"{_name(rank, i, entry)}: the weights of stage {stage} are not there"
                )
    return problems


def _lost_gradients(
    document: dict[str, Any], stage: int, owner: int, sums: list[list[_Move]]
) -> list[str]:
    """Weight gradients that never leave a rank other than the owner.

    A gradient leaves with the next D to do so, hence never twice, and D's journey ends at the
    owner, hence never elsewhere.
    """
    problems = []
    for rank, row in enumerate(document["order"]):
        leaves = [move.after for journey in sums for move in journey if move.source == rank]
        for i, entry in enumerate(row):
            if entry["stage"] != stage or entry["op"] not in ("W", "BW") or rank == owner:
                continue
            if not any(after > i for after in leaves):
                problems.append(
                    f"{_name(rank, i, entry)}: no D of stage {stage} takes its gradient to the "
                    f"owner, rank {owner}"
                )
    return problems


def _wrong_times(document: dict[str, Any], moves: list[_Move]) -> list[str]:
    problems = []
    order = document["order"]
    network = read_network(Reader(document["profile"], "profile", []), document["ranks"])
    came: dict[tuple[str, int, int], float] = {}  # by item: when its last transfer ends
    free: dict[object, float] = {}  # by wire: when its last transfer ends
    for move in moves:
        item = move.tensor, move.stage, move.copy
        wires = network.wires(move.source, move.target)
        start = max([came.get(item, 0.0), *(free.get(wire, 0.0) for wire in wires)])
        if move.after > 0:
            start = max(start, order[move.source][move.after - 1]["end"])
        if move.room > 0:
            start = max(start, order[move.target][move.room - 1]["end"])
        end = move.start + _delay(document["profile"], network, move)
        if not _close(move.start, start):
            problems.append(f"{move}: starts at {move.start:g}, by the rule at {start:g}")
        if not _close(move.end, end):
            problems.append(f"{move}: ends at {move.end:g}, by its delay at {end:g}")
        came[item] = move.end
        free.update(dict.fromkeys(wires, move.end))
    return problems


def _delay(profile: dict[str, Any], network: Network, move: _Move) -> float:
    stages = profile["stages"]
    sizes = stages[move.stage if len(stages) > 1 else 0]
    size = sizes.get("weight_bytes")
    if move.tensor == "gradient" and sizes.get("grad_bytes") is not None:
        size = sizes["grad_bytes"]
    return network.travel_delay(move.source, move.target, size or 0.0)


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= _TOLERANCE * max(1.0, abs(a), abs(b))


def _name(rank: int, position: int, entry: dict[str, Any]) -> str:
    return f"rank {rank}, op {position} ({entry['stage']}{entry['op']}{entry['microbatch']})"
