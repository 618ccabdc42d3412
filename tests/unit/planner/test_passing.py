"""``optimize(passing="auto")``: what may travel on a cluster, and where rows of stages begin."""

from __future__ import annotations

from typing import Any

import pytest

from pipeloom import Profile, StageProfile, optimize, verify
from pipeloom.ir import Link, Links
from pipeloom.planner import Answer

STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5, 1e4, 1e9, 1e9, 2e9)
"""Weights that take long to send."""


def asked(profile: Profile, microbatches: int, **more: Any) -> Answer:
    options = {"solver": "heuristic", "work_limit": 0.05} | more
    return optimize(profile, microbatches, passing="auto", **options)


def ring(ranks: int, stages: int, *slow: tuple[int, int]) -> Profile:
    links = Links(Link(0.01, 1.0), tuple((a, b, Link(0.5, 0.01)) for a, b in slow))
    return Profile((STAGE,) * stages, ranks, links=links, max_stages=stages)


@pytest.mark.parametrize(
    ("profile", "owners"),
    [
        (ring(4, 4), (0, 1, 2, 3)),
        (ring(4, 4, (3, 0)), (0, 1, 2, 3)),
        (ring(4, 4, (1, 2)), (2, 3, 0, 1)),
        (ring(3, 5, (0, 1)), (1, 1, 2, 2, 0)),
    ],
)
def test_a_row_begins_where_it_leaves_out_the_slowest_link(
    profile: Profile, owners: tuple[int, ...]
) -> None:
    answer = asked(profile, 4, placement="linear")
    assert answer.schedule.problem.placement.owners == owners
    assert [each.name for each in answer.candidates if each.reason is None] == ["activations"]
    assert {each.name for each in answer.candidates} == {"activations", "weights", "fsdp"}
    assert verify(answer).ok
    steps = [one["step"] for one in answer.to_dict()["choice"]["schemes"]]
    assert answer.step == pytest.approx(min(steps))


def test_consecutive_stages_of_a_rank_take_as_long_as_one_stage() -> None:
    """Three of them on rank 0 and two on rank 1, which never hold more."""
    three, two = (StageProfile(n, n, n, n, n / 2, 1e4, n * 1e9, n * 1e9, n * 2e9) for n in (3, 2))
    merged = Profile((three, two), 2, links=Links(Link(0.01, 1.0)))
    apart, whole = (
        asked(each, 6, placement="linear", memory_limit=7.0) for each in (ring(2, 5), merged)
    )
    assert apart.schedule.problem.placement.owners == (0, 0, 0, 1, 1)
    assert apart.step == pytest.approx(whole.step)
    held, most = (max(one.schedule.known_timing.peak_memory) for one in (apart, whole))
    assert held <= most * (1 + 1e-9)
    assert most <= 7.0
