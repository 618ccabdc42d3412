"""Verifies a schedule document by the contract, without trusting its producer.

This is slow, plain code on the raw JSON. It shares no code with the simulator, the families or the
solvers, so that an error in one of them is not repeated here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from .gradient_averaging import verify_averages
from .report import RELATIVE, verify_memory, verify_report
from .schedule_facts import Facts, Run, read_facts
from .transfers import arrivals, verify_transfers
from .turns import verify_turns

_MOST = 50  # most missing ops that are reported

_First = dict[tuple[str, int, int], Run]
_Arrivals = dict[tuple[int, int], float]


def verify_schedule(document: dict[str, Any]) -> list[str]:
    """All violations of the contract in a schedule document, one line each; empty if it is valid.

    Raises InputError, with one line per fault, if ``document`` is not a schedule document.
    """
    return schedule_violations(read_facts(document, "schedule"))


def schedule_violations(facts: Facts) -> list[str]:
    """All violations of the contract, one line each; empty if the schedule is valid."""
    first = _first_runs(facts)
    return [
        *_completeness(facts),
        *verify_placement(facts),
        *_remat(facts, first),
        *_sequence(facts, first),
        *_paired(facts),
        *_timing(facts, first, arrivals(facts)),
        *verify_turns(facts, first),
        *_transfers(facts),
        *verify_averages(facts),
        *verify_memory(facts),
        *verify_report(facts),
    ]


def _first_runs(facts: Facts) -> _First:
    """The first run of each op; a BW is entered as B and as W."""
    first: _First = {}
    for run in facts.runs:
        for kind in ("B", "W") if run.kind == "BW" else (run.kind,):
            first.setdefault((kind, run.stage, run.microbatch), run)
    return first


def _completeness(facts: Facts) -> Iterator[str]:
    """Each (stage, microbatch) must have one F, and either one B and one W, or one BW."""
    counts = Counter((run.kind, run.stage, run.microbatch) for run in facts.runs)
    for (kind, s, j), count in counts.items():
        if count > 1:
            yield f"{s}{kind}{j} runs {count} times, expected once: {_where(facts, kind, s, j)}"
        if kind == "BW" and (counts["B", s, j] or counts["W", s, j]):
            yield f"{s}BW{j} runs beside a separate {s}B{j} or {s}W{j}: {_where(facts, 'BW', s, j)}"
    yield from islice(_missing(facts, counts), _MOST)


def _remat(facts: Facts, first: _First) -> Iterator[str]:
    """Each R, O and L must have its costs in the profile, and be combined correctly.

    R and O exclude each other; O and L come together; none of them can be combined with pairs, or
    with the sending of weights.
    """
    for kind, s, j in first:
        if kind == "R" and "R" not in facts.at(s, j).durations:
            yield f"{s}R{j} runs, but the profile has no t_r and m_r for stage {s}"
        if kind == "O" and not facts.can_offload(s, j):
            yield f"{s}O{j} runs, but the profile has no host_link, or no m_o for stage {s}"
        if kind == "R" and ("O", s, j) in first:
            yield f"{s}R{j} runs beside {s}O{j}: what is recomputed cannot be offloaded"
        other = {"O": "L", "L": "O"}.get(kind)
        if other and (other, s, j) not in first:
            yield f"{s}{kind}{j} runs without {s}{other}{j}"
        if kind in ("R", "O", "L") and facts.plan.passing != "activations":
            yield f"{s}{kind}{j} runs, but passing is {facts.plan.passing}"
        if kind in ("R", "O", "L") and any(facts.pairs):
            yield f"{s}{kind}{j} runs beside pairs"


def _missing(facts: Facts, counts: Counter[tuple[str, int, int]]) -> Iterator[str]:
    for s in range(facts.plan.stages):
        for j in range(facts.plan.microbatches):
            for kind in ("F", "B", "W"):
                if not counts[kind, s, j] and (kind == "F" or not counts["BW", s, j]):
                    yield f"{s}{kind}{j} never runs"


def _where(facts: Facts, kind: str, stage: int, microbatch: int) -> str:
    places = [
        f"rank {run.rank} op {run.at}"
        for run in facts.runs
        if (run.kind, run.stage, run.microbatch) == (kind, stage, microbatch)
    ]
    return ", ".join(places)


def _sequence(facts: Facts, first: _First) -> Iterator[str]:
    """For one (stage, microbatch), F must come before B and B before W; R, or O and L, between F
    and B."""
    backward = ("F", "R", "L")
    causes = {"B": backward, "BW": backward, "W": ("B",), "R": ("F",), "O": ("F",), "L": ("O",)}
    for run in facts.runs:
        for before in causes.get(run.kind, ()):
            earlier = first.get((before, run.stage, run.microbatch))
            if earlier and earlier.rank == run.rank and earlier.at >= run.at:
                yield f"rank {run.rank} runs {run} (op {run.at}) before {earlier} (op {earlier.at})"


def _paired(facts: Facts) -> Iterator[str]:
    """A pair must be an F, and after it the BW of another stage or microbatch."""
    for row, places in zip(facts.order, facts.pairs, strict=True):
        for at in places:
            one, other = row[at], row[at + 1]
            same = (one.stage, one.microbatch) == (other.stage, other.microbatch)
            if (one.kind, other.kind) != ("F", "BW") or same:
                yield (
                    f"rank {one.rank} runs {one} (op {at}) and {other} at once, expected an F and "
                    "the BW of another stage or microbatch"
                )


def _partner(facts: Facts, run: Run) -> Run | None:
    """The op that runs at once with ``run``, or None."""
    places, row = facts.pairs[run.rank], facts.order[run.rank]
    if run.at in places:
        return row[run.at + 1]
    return row[run.at - 1] if run.at - 1 in places else None


def _duration(facts: Facts, run: Run) -> float:
    """The duration of an op or a pair. A pair takes the sum less the smaller saving, and no less
    than either op."""
    other = _partner(facts, run)
    alone = facts.duration(run)
    if other is None:
        return alone
    second = facts.duration(other)
    saved = min(_saved(facts, run), _saved(facts, other))
    return max(alone, second, alone + second - saved)


def _saved(facts: Facts, run: Run) -> float:
    """Time saved by running the microbatch's F and BW on the op's stage at once."""
    at_once = facts.stage(run.stage).t_fb
    if at_once is None:
        return 0.0
    alone = facts.at(run.stage, run.microbatch).durations
    return alone["F"] + alone["BW"] - at_once


def _timing(facts: Facts, first: _First, waits: _Arrivals) -> Iterator[str]:
    """Each op must start exactly when its rank is free and its inputs have arrived."""
    slack = RELATIVE / 1000 * max((run.end for run in facts.runs), default=0.0)  # for times near 0

    def same(a: float, b: float) -> bool:
        return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=slack)

    for row in facts.order:
        free = _Free()
        for run in row:
            other = _partner(facts, run)
            causes = free.causes(run)
            for one in (run,) if other is None else (run, other):
                came = waits.get((one.rank, one.at), 0.0)
                causes += [*_inputs(facts, first, one), (came, "a weight or gradient has come")]
            ready, cause = max(causes)
            if not same(run.start, ready):
                wrong = "before" if run.start < ready else "after"
                yield (
                    f"rank {run.rank} starts {run} (op {run.at}) at {run.start:.9g}, {wrong} "
                    f"{ready:.9g}, when {cause}"
                )
            end = run.start + _duration(facts, run)
            if not same(run.end, end):
                yield (
                    f"rank {run.rank} ends {run} (op {run.at}) at {run.end:.9g}, "
                    f"expected {end:.9g}: its start and its duration"
                )
            if other is None or other.at < run.at:
                free.take(run)


@dataclass(slots=True)
class _Free:
    """When the rank, and its copies to the host and back, are free: (time, event)."""

    rank: tuple[float, str] = (0.0, "the step's start")
    copies: dict[str, tuple[float, str]] = field(default_factory=dict)

    def causes(self, run: Run) -> list[tuple[float, str]]:
        copy = self.copies.get(run.kind, (0.0, "the step's start"))
        if run.kind == "O":
            return [copy]
        return [self.rank, copy] if run.kind == "L" else [self.rank]

    def take(self, run: Run) -> None:
        ends = run.end, f"{run} of the same rank ends"
        if run.kind in ("O", "L"):
            self.copies[run.kind] = ends
        if run.kind == "O":
            self.rank = max(self.rank, ends)
        elif run.kind != "L":
            self.rank = ends


def _inputs(facts: Facts, first: _First, run: Run) -> Iterator[tuple[float, str]]:
    """(arrival time, event) of each input of ``run`` that another op computes."""
    s, j = run.stage, run.microbatch
    needs = {
        "F": [("F", s - 1)],
        "B": [("F", s), ("L", s), ("B", s + 1)],
        "BW": [("F", s), ("L", s), ("B", s + 1)],
        "W": [("B", s)],
        "R": [("F", s)],
        "O": [("F", s)],
        "L": [("O", s)],
    }[run.kind]
    for kind, stage in needs:
        made = first.get((kind, stage, j))
        if made is None or made is run:
            continue
        size = facts.at(min(s, stage), j).activation_bytes  # the gradient has the same size
        delay = facts.network.delay(made.rank, run.rank, size)
        yield made.end + delay, f"{made} of rank {made.rank} has come"


def _transfers(facts: Facts) -> list[str]:
    """Transfers must be valid if weights are sent; otherwise there must be none."""
    if facts.plan.passing != "activations":
        return verify_transfers(facts)
    count = len(facts.moves)
    return [f"transfers: expected none where activations are passed, got {count}"] if count else []


def verify_placement(facts: Facts) -> Iterator[str]:
    """A stage, a microbatch or a pair of both must stay on one rank, depending on the passing.

    The rank must also match the placement's name.
    """
    names = {"activations": "stage {0}", "weights": "microbatch {1}", "mixed": "stage {0}, {1}"}
    homes: dict[str, Run] = {}
    for run in facts.runs:
        unit = names[facts.plan.passing].format(run.stage, run.microbatch)
        home = homes.setdefault(unit, run)
        if home.rank != run.rank:
            yield (
                f"rank {run.rank} runs {run} (op {run.at}), but rank {home.rank} runs {home}: "
                f"where passing is {facts.plan.passing}, {unit} lives on one rank"
            )
    yield from _named(facts, list(homes.values()))


def _named(facts: Facts, homes: list[Run]) -> Iterator[str]:
    """Check the ranks against the placement's name, if it is in :data:`_PLACES`."""
    name, ranks, stages = facts.plan.placement or "", facts.plan.ranks, facts.plan.stages
    kind, _, size = name.partition(":")
    if kind not in _PLACES:
        return
    number = int(size) if size.isdecimal() else 1
    chunks = {"linear": 1, "interleaved": number, "v": 2, "wave": 2 * number}.get(kind)
    passing = "activations" if chunks else "weights" if kind == "round-robin" else "mixed"
    sound = 1 <= number <= max(ranks, stages) and chunks in (None, stages / ranks)
    if not sound or facts.plan.passing != passing:
        what = f"{stages} stages on {ranks} ranks, passing {facts.plan.passing}"
        yield f"placement: {name} is none of {what}"
        return
    for run in homes:
        expected = _PLACES[kind](run, ranks, stages, number)
        if run.rank != expected:
            yield f"rank {run.rank} runs {run} (op {run.at}), by placement {name} rank {expected}"


def _down_and_up(run: Run, ranks: int, *_: int) -> int:
    at = run.stage % (2 * ranks)
    return min(at, 2 * ranks - 1 - at)


_PLACES: dict[str, Callable[[Run, int, int, int], int]] = {
    "linear": lambda run, *_: run.stage,
    "interleaved": lambda run, ranks, *_: run.stage % ranks,
    "v": _down_and_up,
    "wave": _down_and_up,
    "round-robin": lambda run, ranks, *_: run.microbatch % ranks,
    "bidirectional": lambda run, ranks, *_: (
        ranks - 1 - run.stage if run.microbatch % 2 else run.stage
    ),
}
"""The rank of an op by the kind of placement: (op, ranks, stages, number in the name) -> rank."""
