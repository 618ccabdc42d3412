"""``optimize(passing="auto")``: the fastest scheme, and the first rank of a row of stages."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from pipeloom import Profile, StageProfile, optimize, verify
from pipeloom.ir import Link, Links
from pipeloom.planner import Result

STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5, 1e4, 1e9, 1e9, 2e9)
"""A stage whose weights take long to send."""


def asked(profile: Profile, microbatches: int, **more: Any) -> Result:
    options = {"solver": "heuristic", "work_limit": 0.05} | more
    return optimize(profile, microbatches, passing="auto", **options)


def ring(*slow: tuple[int, int]) -> Profile:
    links = Links(Link(0.01, 1.0), tuple((a, b, Link(0.5, 0.01)) for a, b in slow))
    return Profile((STAGE,) * 4, 4, links=links, max_stages=4)


@pytest.mark.parametrize(
    ("profile", "owners"),
    [
        (ring(), (0, 1, 2, 3)),
        (ring((3, 0)), (0, 1, 2, 3)),
        (ring((1, 2)), (2, 3, 0, 1)),
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
    assert answer.step == min(each.cost for each in answer.candidates if each.cost is not None)


HEAVY = StageProfile(1.0, 1.0, 1.0, 100.0, 50.0, 1e6, 1e6, 1e6, 2e6)


def cluster(stage: StageProfile = HEAVY, between: float = 1.0, **changes: Any) -> Profile:
    """Four ranks in two nodes: 100 GB/s within nodes, ``between`` GB/s between them."""
    inside, out = Link(0.0, 100.0), tuple(product((0, 1), (2, 3)))
    cards = (out, tuple((b, a) for a, b in out))
    links = Links(Link(0.0, between), ((0, 1, inside), (2, 3, inside)), cards)
    return replace(Profile((stage,) * 4, 4, links=links), **changes)


def schemes(profile: Profile, microbatches: int = 8) -> Any:
    return asked(profile, microbatches).candidates


def test_what_is_large_stays_and_device_memory_decides() -> None:
    light_weights = replace(HEAVY, weight_bytes=1e3, grad_bytes=1e3)
    assert schemes(cluster(light_weights, 0.1))[0].name in {"weights", "fsdp"}
    light_messages = replace(HEAVY, activation_bytes=1e3)
    assert schemes(cluster(light_messages, 0.1))[0].name == "activations"
    # activations of two microbatches on all stages have 800 bytes: messages are far smaller
    light = StageProfile(1.0, 1.0, 1.0, 100.0, 0.0, 10.0, 100.0, 100.0, 200.0)
    best, *others = schemes(cluster(light, device_memory=(905.0,) * 4))
    assert (best.name, best.reason) == ("activations", None)
    for each in others:
        assert "device memory 905" in each.notes or "too small" in each.notes
    # on one rank nothing is sent, with any scheme
    assert [each.cost for each in schemes(Profile((HEAVY,), 1), 3)] == [9.0] * 3
