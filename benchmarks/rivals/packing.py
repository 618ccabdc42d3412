"""Batches of sequences packed by several methods. Schedules for all packings get the same work
limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from statistics import median
from time import process_time
from typing import Any

import numpy as np

import pipeloom
from pipeloom import Profile, StageProfile
from pipeloom.ir.formats.lengths_document import parse_lengths
from pipeloom.planner import Microbatches, SequenceCosts
from pipeloom.planner.pack import tokens_that_fit
from pipeloom.planner.packing.constructors import dealt, greedy, sorted_runs
from pipeloom.solver import objective_cost

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain

PART, BATCHES, SEED, WORK, REFERENCE = "packing", 20, 18, 20.0, 4096
MOST_WORSE = 1  # batches in which another packing may be better, due to the small work limit
SAME = 1e-9
"""The relative tolerance within which costs count as equal."""


Numbers = np.ndarray[tuple[int, ...], np.dtype[Any]]


def by_length(costs: Numbers, lengths: Numbers, number: int, most: float) -> Microbatches | None:
    """Sort sequences by length, and put the same number of sequences into each of ``number``
    microbatches.

    Returns None if a microbatch would have more than ``most`` tokens.
    """
    parts = np.array_split(np.argsort(lengths, kind="stable"), number)
    fits = all(lengths[part].sum() <= most for part in parts)
    return [part.tolist() for part in parts] if fits else None


def first_fit(costs: Numbers, lengths: Numbers, number: int, most: float) -> Microbatches | None:
    """First fit: each sequence, in the given order, goes to the first microbatch with enough space.

    Bisection finds the smallest number of tokens per microbatch with which all sequences fit.
    Returns None if they do not fit with ``most``.
    """
    none, order = np.zeros(len(lengths)), np.arange(len(lengths))
    packed = partial(greedy, none, order, lengths, number)
    sizes = range(int(lengths.max()), int(min(most, lengths.sum())) + 1)
    fewest = bisect_left(sizes[:-1], True, key=lambda tokens: packed(tokens) is not None)
    return packed(sizes[fewest]) if sizes else None


OTHERS: dict[str, Callable[[Numbers, Numbers, int, float], Microbatches | None]] = {
    "sorted": by_length,
    "first fit": first_fit,
    "dynamic programming": sorted_runs,
}
"""The methods that are compared with ours, by name."""


def batch(number: int) -> tuple[dict[str, Any], Profile, dict[str, Any]]:
    """The lengths document, the profile and the options of a random batch.

    Lengths are log-normal in batches with an even number, and either short or long in the others.
    Every fourth batch has unequal stages. In every third one, the memory limit is that of 1.5 P
    microbatches of average size.
    """
    rng = np.random.default_rng((SEED, number))
    ranks, microbatches = int(rng.choice([4, 8])), int(rng.choice([8, 16]))
    replicas = 2 if number % 5 == 4 else 1
    count = 512 if number == 0 else int(rng.choice([4, 8])) * microbatches * replicas
    lengths = rng.lognormal(6.3, 1.0, count)
    if number % 2:
        lengths = np.where(rng.random(count) < 0.85, rng.lognormal(5.5, 0.5, count),
                           rng.lognormal(8.0, 0.3, count))  # fmt: skip
    tokens = np.clip(lengths, 16, 8192).astype(int)
    factors = rng.uniform(0.8, 1.2, ranks) if number % 4 == 3 else np.ones(ranks)
    stages = tuple(
        StageProfile(29.7 * f, 29.4 * f, 19.9 * f, 1.0, 0.43) for f in map(float, factors)
    )
    even = float(tokens.sum()) / (microbatches * replicas) / REFERENCE
    limit = 1.5 * ranks * even if number % 3 == 2 else None
    most = int(max(1.3 * even * REFERENCE, tokens.max())) if number % 2 else None
    document = {
        "format": "pipeloom.lengths", "version": 1, "lengths": tokens.tolist(),
        "reference_length": REFERENCE, "attention": 0.25,
    }  # fmt: skip
    options = {"microbatches": microbatches, "data_parallel": replicas, "max_tokens": most}
    return document, Profile(stages, ranks, 0.5), options | {"memory_limit": limit}


def cases(size: Size) -> Iterator[Case]:
    for number in range(4 if size == "small" else BATCHES):
        yield Case(PART, f"batch {number}", {"number": number})


def measure(case: Case) -> Row:
    """The cost with the packing of each method for a batch, the lower bound, and the CPU seconds of
    :func:`pipeloom.pack`.

    A cost is None if the method finds no packing within the allowed tokens per microbatch.
    """
    number = case.given["number"]
    document, profile, options = batch(number)
    began = process_time()
    ours = pipeloom.pack(document, profile, work_limit=WORK, seed=number, **options)
    spent = process_time() - began
    problem = pipeloom.Problem.linear(profile, options["microbatches"], options["memory_limit"])
    costs = SequenceCosts.of(problem, parse_lengths(document, "lengths"), "lengths")
    most = min(options["max_tokens"] or inf, tokens_that_fit(costs))
    replicas = options["data_parallel"]
    packed = {
        name: pack(costs.busiest, costs.lengths, problem.microbatches * replicas, most)
        for name, pack in OTHERS.items()
    }
    return {
        "ranks": profile.ranks,
        "sequences": len(document["lengths"]),
        "work_limit": WORK,
        **options,
        "ours": ours.cost,
        "bound": ours.lower_bound,
        "cpu_seconds": spent,
        **{n: each and _cost(costs, each, replicas, number) for n, each in packed.items()},
    }


def _cost(costs: SequenceCosts, packed: Microbatches, replicas: int, seed: int) -> float:
    """The cost of the slowest replica, with the best schedule found for each. The replicas share
    the work limit ``WORK``."""
    rows, count = dealt(packed, costs.busiest, replicas), len(packed) // replicas
    parts = (rows[first : first + count] for first in range(0, len(rows), count))
    limits: dict[str, Any] = {"work_limit": WORK / replicas, "seed": seed}
    return max(objective_cost(pipeloom.solve(costs.problem_of(part), **limits)) for part in parts)


def best_other(row: Row) -> float:
    """The lowest cost with one of the other packings."""
    return min((row[name] for name in OTHERS if row[name] is not None), default=inf)


def judge(rows: Rows) -> Iterator[Claim]:
    shares, gaps = [row["ours"] / best_other(row) for row in rows], list(map(_gap, rows))
    good = sum(share <= 1 + SAME for share in shares)
    words = (
        "Packed sequences: steps are no longer than with sorting, first fit and DynaPipe's dynamic "
        f"programming in {good} of {len(rows)} batches, and {max(0.0, max(shares) - 1):.2%} longer "
        f"at most in the others; the median is {median(shares):.4f} of the best other's. The "
        f"median gap is {median(gaps):.2%}, the largest {max(gaps):.2%}."
    )
    sound = all(row["bound"] <= min(row["ours"], best_other(row)) * (1 + SAME) for row in rows)
    yield Claim(PART, words, sound and good >= len(rows) - MOST_WORSE)


def _gap(row: Row) -> float:
    return float(1 - row["bound"] / row["ours"])


_SHAPE = {"P": "ranks", "M": "microbatches", "replicas": "data_parallel", "sequences": "sequences"}
columns = {
    PART: Table(
        *plain({"batch": "case"}),
        *plain(_SHAPE, "d"),
        *(Column(name, name, ".0f") for name in ("ours", *OTHERS, "bound")),
        Column("gap", _gap, ".2%"),
        *plain({"CPU s": "cpu_seconds"}, ".2f"),
    )
}
