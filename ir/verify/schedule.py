"""Checks a schedule document by the contract, without trusting whoever made it.

Slow, plain code on the raw JSON: it shares no line with the simulator, the families or the
solvers, so that an error in one is not repeated in the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..formats.json_reader import show
from .gradient_averaging import verify_averages
from .placement import verify_placement
from .schedule_facts import Facts, Run, read_facts
from .transfers import arrivals, verify_transfers
from .turns import verify_turns

_RELATIVE = 1e-6  # of times and of what follows from them
_MEMORY = 1e-9  # relative, of the sum of M_B and M_W
_MOST = 50  # missing ops that are named one by one

_First = dict[tuple[str, int, int], Run]
_Arrivals = dict[tuple[int, int], float]


def verify_schedule(document: dict[str, Any]) -> list[str]:
    """Every breach of the contract in a schedule document, one readable line each; empty: valid.

    Raises InputError, a line for each fault, for what has not the shape of a schedule document.
    """
    return schedule_violations(read_facts(document, "schedule"))


def schedule_violations(facts: Facts) -> list[str]:
    """Every breach of the contract, one readable line each; empty: valid."""
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
        *_memory(facts),
        *_report(facts),
    ]


def _first_runs(facts: Facts) -> _First:
    """The first run of each op; a BW stands for the B and the W of its microbatch."""
    first: _First = {}
    for run in facts.runs:
        for kind in ("B", "W") if run.kind == "BW" else (run.kind,):
            first.setdefault((kind, run.stage, run.microbatch), run)
    return first


def _completeness(facts: Facts) -> Iterator[str]:
    """Each (stage, microbatch) has F once, and either B and W once each or BW once."""
    counts = Counter((run.kind, run.stage, run.microbatch) for run in facts.runs)
    for (kind, s, j), count in counts.items():
        if count > 1:
            yield f"{s}{kind}{j} runs {count} times, expected once: {_where(facts, kind, s, j)}"
        if kind == "BW" and (counts["B", s, j] or counts["W", s, j]):
            yield f"{s}BW{j} runs beside a separate {s}B{j} or {s}W{j}: {_where(facts, 'BW', s, j)}"
    yield from islice(_missing(facts, counts), _MOST)


def _remat(facts: Facts, first: _First) -> Iterator[str]:
    """Activations given up between F and B are recomputed, or offloaded and loaded, and can be."""
    for (kind, s, j), run in first.items():
        if kind == "R" and facts.level(run) is None:
            level = f"level {run.level}" if facts.stage(s).levels or run.level else "t_r and m_r"
            yield f"{run} runs, but the profile has no {level} for stage {s}"
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
    """On its rank, F comes before B and B before W of one (stage, microbatch); R, or O and L,
    between F and B."""
    backward = ("F", "R", "L")
    causes = {"B": backward, "BW": backward, "W": ("B",), "R": ("F",), "O": ("F",), "L": ("O",)}
    for run in facts.runs:
        for before in causes.get(run.kind, ()):
            earlier = first.get((before, run.stage, run.microbatch))
            if earlier and earlier.rank == run.rank and earlier.at >= run.at:
                yield f"rank {run.rank} runs {run} (op {run.at}) before {earlier} (op {earlier.at})"


def _paired(facts: Facts) -> Iterator[str]:
    """Only an F and the BW of another stage or microbatch run at once, listed in this order."""
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
    """The op that runs at once with ``run``, if any."""
    places, row = facts.pairs[run.rank], facts.order[run.rank]
    if run.at in places:
        return row[run.at + 1]
    return row[run.at - 1] if run.at - 1 in places else None


def _duration(facts: Facts, run: Run) -> float:
    """A pair takes as long as both, less what their stages save, and no less than either."""
    other = _partner(facts, run)
    alone = facts.duration(run)
    if run.kind == "R":
        level = facts.level(run)
        return level.t_r if level else 0.0
    if other is None:
        return alone
    second = facts.duration(other)
    saved = min(_saved(facts, run), _saved(facts, other))
    return max(alone, second, alone + second - saved)


def _saved(facts: Facts, run: Run) -> float:
    """Time saved where the microbatch's F and BW run at once on the op's stage."""
    at_once = facts.stage(run.stage).t_fb
    if at_once is None:
        return 0.0
    alone = facts.at(run.stage, run.microbatch).durations
    return alone["F"] + alone["BW"] - at_once


def _timing(facts: Facts, first: _First, waits: _Arrivals) -> Iterator[str]:
    """Each op starts when its rank is free and its inputs have come, neither earlier nor later."""
    slack = _RELATIVE / 1000 * max((run.end for run in facts.runs), default=0.0)  # for times near 0

    def same(a: float, b: float) -> bool:
        return math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=slack)

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
    """When one rank is free, and its copies out to the host and back: (time, what happens then)."""

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
    """(time, what happens then) of each input of ``run`` that another op makes."""
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
        size = facts.at(min(s, stage), j).activation_bytes  # both ways as large
        delay = facts.network.delay(made.rank, run.rank, size)
        yield made.end + delay, f"{made} of rank {made.rank} has come"


def _transfers(facts: Facts) -> list[str]:
    """Transfers are sound where weights are passed; elsewhere there are none."""
    if facts.plan.passing != "activations":
        return verify_transfers(facts)
    count = len(facts.moves)
    return [f"transfers: expected none where activations are passed, got {count}"] if count else []


def _memory(facts: Facts) -> Iterator[str]:
    """At every moment the activations on a rank are within its limit."""
    for rank, row in enumerate(facts.order):
        limit = facts.limit[rank]
        for run, held in _held(facts, row):
            if run.kind in ("F", "R", "L") and held > limit + _MEMORY * max(limit, held):
                yield (
                    f"rank {rank} holds {held:.9g} from {run.start:.9g}, when {run} (op {run.at}) "
                    f"starts, more than its memory limit {limit:.9g}"
                )
                break  # what follows on this rank says the same again


def _held(facts: Facts, row: list[Run]) -> Iterator[tuple[Run, float]]:
    """Each op with its rank's memory from the start of F, R or L on, from the end of others."""
    held = 0.0
    again = {(run.stage, run.microbatch): facts.level(run) for run in row if run.kind == "R"}
    for run in row:
        stage = facts.at(run.stage, run.microbatch)
        level = again.get((run.stage, run.microbatch))
        m_r, m_o = level.m_r if level else stage.m_b, stage.m_o or 0.0
        held += {
            "F": m_r,
            "R": stage.m_b - m_r,
            "O": m_o - stage.m_b,
            "L": stage.m_b - m_o,
            "B": stage.m_w - stage.m_b,
            "W": -stage.m_w,
            "BW": -stage.m_b,
        }[run.kind]
        yield run, held


def _report(facts: Facts) -> Iterator[str]:
    """The report's figures follow from the order's times."""
    spans = [row[-1].end - row[0].start if row else 0.0 for row in facts.order]
    begin = min((run.start for run in facts.runs), default=0.0)
    makespan = max((run.end for run in facts.runs), default=0.0) - begin
    seconds = {(rank, at + 1) for rank, places in enumerate(facts.pairs) for at in places}
    work = math.fsum(
        run.end - run.start
        for run in facts.runs
        if run.kind not in ("O", "L") and (run.rank, run.at) not in seconds
    )
    peaks = [
        max([held for _, held in _held(facts, row)] + [0.0], default=0.0) for row in facts.order
    ]
    objective = facts.report.objective
    if objective is None:
        yield "report: objective: expected period or makespan, got null"
        return
    cost = max(spans) if objective == "period" else makespan
    bubble = 1.0 - work / (facts.plan.ranks * cost) if cost > 0 else 0.0
    yield from _equal(facts, "period", max(spans))
    yield from _equal(facts, "makespan", makespan)
    yield from _equal(facts, "bubble_rate", bubble, slack=_RELATIVE)
    yield from _peaks(facts, peaks)
    yield from _certificate(facts, cost)


def _equal(facts: Facts, key: str, expected: float, slack: float = 0.0) -> Iterator[str]:
    value = getattr(facts.report, key)
    if not _is_near(value, expected, slack):
        yield (
            f"report: {key}: expected {expected:.9g}, which follows from the order, got "
            f"{show(value)}"
        )


def _is_near(value: float | None, expected: float, slack: float) -> bool:
    return value is not None and math.isclose(value, expected, rel_tol=_RELATIVE, abs_tol=slack)


def _peaks(facts: Facts, peaks: list[float]) -> Iterator[str]:
    values = facts.report.peak_memory
    if values is None or len(values) != len(peaks):
        yield f"report: peak_memory: expected one number a rank, got {show(values)}"
        return
    for rank, (value, peak) in enumerate(zip(values, peaks, strict=True)):
        if not _is_near(value, peak, _MEMORY * max(peaks)):
            yield f"report: peak_memory: rank {rank} holds at most {peak:.9g}, got {show(value)}"


def _certificate(facts: Facts, cost: float) -> Iterator[str]:
    """The bound is below the cost, the gap follows, and only what is proven is called optimal."""
    bound, gap, status = facts.report.lower_bound, facts.report.gap, facts.report.status
    if status is None:
        yield "report: status: expected optimal or feasible, got null"
    if bound is None:
        if gap is not None:
            yield f"report: gap: expected none without a lower bound, got {show(gap)}"
        if status == "optimal":
            yield "report: status: optimal, but there is no lower bound"
        return
    if bound > cost * (1 + _RELATIVE):
        yield f"report: lower_bound: {bound:.9g} is more than the cost {cost:.9g}"
    elif status == "optimal" and cost - bound > _RELATIVE * cost:
        yield f"report: status: optimal, but the cost {cost:.9g} is above the bound {bound:.9g}"
    expected = max(0.0, (cost - bound) / cost) if cost > 0 else 0.0
    yield from _equal(facts, "gap", expected, slack=_RELATIVE)
