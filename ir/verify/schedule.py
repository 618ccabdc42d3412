"""Verifies a schedule document: checks all rules that a valid schedule must obey.

The code is plain and slow, and works on the contents of the file. It shares no code with the
simulator, the families or the solvers, so that an error in one of them is noticed. Each check
yields one line of text per violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from .gradient_averaging import verify_averages
from .report import verify_memory, verify_report
from .schedule_facts import Facts, Run, read_facts
from .transfers import verify_transfers
from .waits import verify_waits

_MOST = 50  # maximum number of missing ops that are reported


def verify_schedule(document: dict[str, Any]) -> list[str]:
    """All violations of the rules by a schedule document, one line each.

    The list is empty if the schedule is valid. Raises InputError, with one line per fault, if
    ``document`` is not a schedule document.
    """
    return schedule_violations(read_facts(document, "schedule"))


def schedule_violations(facts: Facts) -> list[str]:
    """All violations of the rules, one line each; an empty list if the schedule is valid."""
    return [
        *_completeness(facts),
        *verify_placement(facts),
        *_remat(facts),
        *_sequence(facts),
        *_paired(facts),
        *verify_waits(facts),
        *_transfers(facts),
        *verify_averages(facts),
        *verify_memory(facts),
        *verify_report(facts),
    ]


def _completeness(facts: Facts) -> Iterator[str]:
    """Yield a line for each op that is missing or that runs too often.

    Each (stage, microbatch) must have one F, and either one B and one W, or one BW.
    """
    counts = Counter((run.kind, run.stage, run.microbatch) for run in facts.runs)
    for (kind, s, j), count in counts.items():
        if count > 1:
            yield f"{s}{kind}{j} runs {count} times, expected once: {_where(facts, kind, s, j)}"
        if kind == "BW" and (counts["B", s, j] or counts["W", s, j]):
            yield f"{s}BW{j} runs in addition to {s}B{j} or {s}W{j}: {_where(facts, 'BW', s, j)}"
    yield from islice(_missing(facts, counts), _MOST)


def _remat(facts: Facts) -> Iterator[str]:
    """Yield a line for each R, O or L without costs in the profile, or in a wrong combination.

    A (stage, microbatch) must not have both R and O, and must have O if and only if it has L. None
    of them can be combined with pairs, or with sent weights.
    """
    first = facts.first
    for kind, s, j in first:
        if kind == "R" and "R" not in facts.at(s, j).durations:
            yield f"{s}R{j} runs, but the profile has no t_r and m_r for stage {s}"
        if kind == "O" and "O" not in facts.at(s, j).durations:
            yield f"{s}O{j} runs, but the profile has no host_link, or no m_o for stage {s}"
        if kind == "R" and ("O", s, j) in first:
            yield f"{s}R{j} runs together with {s}O{j}: what is recomputed cannot be offloaded"
        other = {"O": "L", "L": "O"}.get(kind)
        if other and (other, s, j) not in first:
            yield f"{s}{kind}{j} runs without {s}{other}{j}"
        if kind in ("R", "O", "L") and facts.plan.passing != "activations":
            yield f"{s}{kind}{j} runs, but passing is {facts.plan.passing}"
        if kind in ("R", "O", "L") and any(facts.pairs):
            yield f"{s}{kind}{j} runs in a schedule with pairs"


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


def _sequence(facts: Facts) -> Iterator[str]:
    """Yield a line for any two ops of one (stage, microbatch) in the wrong order on their rank.

    F must come before B, B before W, and R, or O and then L, between F and B.
    """
    backward = ("F", "R", "L")
    causes = {"B": backward, "BW": backward, "W": ("B",), "R": ("F",), "O": ("F",), "L": ("O",)}
    for run in facts.runs:
        for before in causes.get(run.kind, ()):
            earlier = facts.first.get((before, run.stage, run.microbatch))
            if earlier and earlier.rank == run.rank and earlier.at >= run.at:
                yield f"rank {run.rank} runs {run} (op {run.at}) before {earlier} (op {earlier.at})"


def _paired(facts: Facts) -> Iterator[str]:
    """Yield a line for each pair that is not an F, then the BW of another (stage, microbatch)."""
    for row, places in zip(facts.order, facts.pairs, strict=True):
        for at in places:
            one, other = row[at], row[at + 1]
            same = (one.stage, one.microbatch) == (other.stage, other.microbatch)
            if (one.kind, other.kind) != ("F", "BW") or same:
                yield (
                    f"rank {one.rank} runs {one} (op {at}) and {other} at once, expected an F and "
                    "the BW of another stage or microbatch"
                )


def _transfers(facts: Facts) -> list[str]:
    """All violations of the rules for transfers, one line each.

    If only activations are sent, there must be no transfers.
    """
    if facts.plan.passing != "activations":
        return verify_transfers(facts)
    count = len(facts.moves)
    return [f"transfers: expected none where activations are passed, got {count}"] if count else []


def verify_placement(facts: Facts) -> Iterator[str]:
    """Yield a line for each op on a rank that contradicts the passing or the placement's name.

    All ops of a stage must be on one rank if activations are sent, those of a microbatch if weights
    are sent, and those of a (stage, microbatch) if passing is mixed.
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
    """Yield a line for each op in ``homes`` on another rank than the placement's name implies.

    Yields one line about the name if it does not fit the stages, ranks and passing, and nothing if
    its kind is not in :data:`_PLACES`. ``homes``: one op of each stage, microbatch or (stage,
    microbatch), depending on the passing.
    """
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
"""For each kind of placement, the function that returns the rank of an op.

Its arguments are the op, the numbers of ranks and stages, and the number in the placement's name.
"""
