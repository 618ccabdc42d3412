"""No bound is above the best of all packings with all schedules; packings keep what they must."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom import Objective, Problem, Profile, StageProfile
from pipeloom.planner.packing.constructors import greedy, sorted_runs
from pipeloom.planner.packing.costs import packing_bound
from tests.support.inner import SequenceCosts, parse_lengths
from tests.support.oracle import searched

TIME = st.sampled_from([0.0, 0.5, 1.0, 3.0])
NODES = 60_000
LENGTHS = st.lists(st.integers(1, 9), min_size=4, max_size=4)


@st.composite
def instances(draw: st.DrawFn, microbatches: int) -> SequenceCosts:
    ranks = draw(st.integers(2, 3))
    stages = tuple(
        StageProfile(draw(TIME), draw(TIME), draw(TIME), 1.0, draw(st.sampled_from([0.0, 0.6])))
        for _ in range(ranks)
    )
    lengths = draw(LENGTHS)
    share = draw(st.sampled_from([0.0, 0.3, 1.0]))
    limit = draw(st.sampled_from([None, sum(lengths) / 4, sum(lengths) / 6]))
    problem = Problem.linear(
        Profile(stages, ranks, draw(st.sampled_from([0.0, 0.4]))),
        microbatches,
        limit,
        draw(st.sampled_from(Objective)),
    )
    document: dict[str, Any] = {
        "format": "pipeloom.lengths", "version": 1, "lengths": lengths, "reference_length": 4,
        "attention": share,
    }  # fmt: skip
    return SequenceCosts.of(problem, parse_lengths(document, "lengths"), "lengths")


def packings(count: int, number: int) -> Iterator[list[list[int]]]:
    """All ways to deal so many sequences, none of the microbatches empty."""
    for places in product(range(number), repeat=count):
        if set(places) == set(range(number)):
            yield [[i for i, at in enumerate(places) if at == j] for j in range(number)]


def least(costs: SequenceCosts, part: list[list[int]], known: dict[str, float]) -> float:
    """The least cost that the oracle finds for these microbatches; infinite if none fits."""
    key = str(sorted(part))
    if key not in known:
        known[key] = searched(costs.problem_of(part), nodes=NODES).least
    return known[key]


@pytest.mark.parametrize(("microbatches", "replicas"), [(2, 1), (3, 1), (1, 2), (2, 2)])
@settings(max_examples=2)
@given(data=st.data())
def test_no_bound_is_above_the_best_of_all(
    microbatches: int, replicas: int, data: st.DataObject
) -> None:
    costs = data.draw(instances(microbatches))
    best, known = np.inf, dict[str, float]()
    for packed in packings(4, microbatches * replicas):
        parts = [packed[r * microbatches : (r + 1) * microbatches] for r in range(replicas)]
        best = min(best, max(least(costs, part, known) for part in parts))
    assert packing_bound(costs, replicas) <= best * (1 + 1e-9)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    number=st.integers(1, 12),
    slack=st.sampled_from([1.0, 1.3, np.inf]),
)
def test_constructors_pack_each_sequence_once_within_the_tokens(
    lengths: list[int], number: int, slack: float
) -> None:
    given, number = np.array(lengths), min(number, len(lengths))
    costs = given + 0.01 * given**2.0
    most = max(slack * given.sum() / number, given.max())
    for found in (
        greedy(costs, np.argsort(-costs), given, number, most),
        greedy(0.0 * costs, np.argsort(-given), given, number, most),
        sorted_runs(costs, given, number, most),
    ):
        if found is None:
            assert slack < np.inf
            continue
        assert len(found) == number
        assert all(found)
        assert sorted(i for each in found for i in each) == list(range(len(lengths)))
        assert max(given[each].sum() for each in found) <= most


@given(lengths=st.lists(st.integers(1, 20), min_size=4, max_size=7))
def test_runs_of_sorted_sequences_are_as_even_as_any(lengths: list[int]) -> None:
    given = np.array(lengths)
    costs = given.astype(float) ** 2
    found = sorted_runs(costs, given, 3, np.inf)
    assert found is not None
    ascending = np.sort(costs)
    cuts = [(a, b) for a in range(1, len(lengths) - 1) for b in range(a + 1, len(lengths))]
    least = min(max(part.sum() for part in np.split(ascending, cut)) for cut in cuts)
    assert max(costs[each].sum() for each in found) == pytest.approx(least)
