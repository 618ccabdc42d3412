"""Checks that ops run where the passing, and the placement's name if there is one, allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .schedule_facts import Facts, Run


def verify_placement(facts: Facts) -> Iterator[str]:
    """A stage, a microbatch or a pair of both stays on one rank, by what is passed, and on the one
    that the placement's name says."""
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
    """Names that are not in :data:`_PLACES` say nothing."""
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
"""The rank of an op by the kind of placement, of ranks, stages and the number in its name."""
