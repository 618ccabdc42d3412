"""No lower bound exceeds the best packing with any schedules; packings satisfy their
constraints."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeloom import InfeasibleError, Objective, Problem, Profile, StageProfile, pack
from tests.conformance.messages import files
from tests.support.oracle import searched
from tests.support.sequences import packed_profile

TIME = st.sampled_from([0.5, 1.0, 3.0])
NODES = 60_000


@st.composite
def profiles(draw: st.DrawFn, most: int) -> Profile:
    ranks = draw(st.integers(2, most))
    m_w = st.sampled_from([0.0, 0.6])
    stages = (
        StageProfile(draw(TIME), draw(TIME), draw(TIME), 1.0, draw(m_w)) for _ in range(ranks)
    )
    return Profile(tuple(stages), ranks, draw(st.sampled_from([0.0, 0.4])))


def packings(count: int, number: int) -> Iterator[list[list[int]]]:
    """All packings of ``count`` sequences into ``number`` nonempty microbatches."""
    for places in product(range(number), repeat=count):
        if set(places) == set(range(number)):
            yield [[i for i, at in enumerate(places) if at == j] for j in range(number)]


@pytest.mark.parametrize(("microbatches", "replicas"), [(2, 1), (3, 1), (1, 2), (2, 2)])
@settings(max_examples=2)
@given(data=st.data())
def test_no_bound_is_above_the_best_of_all(
    microbatches: int, replicas: int, data: st.DataObject
) -> None:
    profile = data.draw(profiles(2 if microbatches == 3 else 3))
    objective = data.draw(st.sampled_from(Objective))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=4, max_size=4))
    limit = data.draw(st.sampled_from([None, sum(lengths) / 4, sum(lengths) / 6]))
    shares = [data.draw(st.sampled_from([0.0, 0.3, 1.0]))] * profile.ranks
    attention = dict.fromkeys(("t_f", "t_b", "t_w"), shares)
    document = files.lengths(lengths=lengths, reference_length=4, attention=attention)
    known = dict[str, float]()

    def least(part: list[list[int]]) -> float:
        key = str(sorted(part))
        if key not in known:
            one = packed_profile(profile, document, part)
            problem = Problem.linear(one, microbatches, limit, objective)
            known[key] = searched(problem, nodes=NODES).least
        return known[key]

    options: dict[str, Any] = {"data_parallel": replicas, "memory_limit": limit}
    try:
        found = pack(
            document, profile, microbatches, **options, objective=objective, work_limit=0.01
        )
    except InfeasibleError:
        assume(False)
    best = inf
    for packed in packings(4, microbatches * replicas):
        parts = [packed[r * microbatches : (r + 1) * microbatches] for r in range(replicas)]
        best = min(best, max(map(least, parts)))
    assert found.lower_bound <= best * (1 + 1e-9)
    assert found.cost >= found.lower_bound
