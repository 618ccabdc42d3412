"""``optimize(passing="auto")``: the fastest scheme, its reasons, and the first rank of consecutive
stages."""

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
    """Three of them on rank 0 and two on rank 1; they never hold more."""
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


HEAVY = StageProfile(1.0, 1.0, 1.0, 100.0, 50.0, 1e6, 1e6, 1e6, 2e6)
KEYS = ("t_f", "t_b", "t_w", "m_b", "m_w", "activation_bytes")  # fields that grow with a microbatch


def cluster(stage: StageProfile = HEAVY, between: float = 1.0, **changes: Any) -> Profile:
    """Four ranks in two nodes: 100 GB/s within nodes, ``between`` GB/s between them."""
    inside, out = Link(0.0, 100.0), tuple(product((0, 1), (2, 3)))
    cards = (out, tuple((b, a) for a, b in out))
    links = Links(Link(0.0, between), ((0, 1, inside), (2, 3, inside)), cards)
    return replace(Profile((stage,) * 4, 4, links=links), **changes)


def chosen(profile: Profile, microbatches: int = 8) -> Any:
    return asked(profile, microbatches).to_dict()["choice"]


def best_of(choice: Any) -> str:
    return str(choice["schemes"][0]["scheme"])


def test_what_is_large_stays_and_device_memory_decides() -> None:
    light_weights = replace(HEAVY, weight_bytes=1e3, grad_bytes=1e3)
    assert best_of(chosen(cluster(light_weights, 0.1))) in {"weights", "fsdp"}
    light_messages = replace(HEAVY, activation_bytes=1e3)
    assert best_of(chosen(cluster(light_messages, 0.1))) == "activations"
    # activations of two microbatches on all stages have 800 bytes: messages are far smaller
    light = StageProfile(1.0, 1.0, 1.0, 100.0, 0.0, 10.0, 100.0, 100.0, 200.0)
    best, *others = chosen(cluster(light, device_memory=(905.0,) * 4))["schemes"]
    assert (best["scheme"], best["why_not"]) == ("activations", None)
    for row in others:
        assert "device memory 905" in row["why_not"] or "too small" in row["why_not"]
    # on one rank nothing is sent, with any scheme
    choice = chosen(Profile((HEAVY,), 1), 3)
    assert [row["step"] for row in choice["schemes"]] == [9.0] * 3
    assert choice["reasons"][0].startswith("activations: 9 ms per step, as with ")


def test_where_it_turns() -> None:
    """The scheme that loses at the profile's size wins beyond the reported size, and not before."""
    best, *others = chosen(cluster(between=0.3))["reasons"]
    turning = [each for each in others if "it wins " in each]
    assert turning, "no scheme turns on this cluster: the test says nothing"
    for line in turning:
        edge = float(line.split("microbatches ")[-1].split()[0])
        larger = "it wins from" in line
        for size in (edge * 1.3, edge * 0.7):
            grown = replace(HEAVY, **{key: getattr(HEAVY, key) * size for key in KEYS})
            rows = chosen(cluster(grown, 0.3))["schemes"]
            step = {row["scheme"]: row["step"] for row in rows}
            loses, wins = (step[each.partition(":")[0]] for each in (line, best))
            assert (loses < wins) == (larger == (size > edge)), (line, size)
