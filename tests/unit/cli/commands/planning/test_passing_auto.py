"""``optimize --passing auto``: the fastest scheme by one measure, and the reasons."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from pipeloom import Profile, StageProfile, optimize
from pipeloom.ir import Link, Links

STAGE = StageProfile(1.0, 1.0, 1.0, 100.0, 50.0, 1e6, 1e6, 1e6, 2e6)
KEYS = ("t_f", "t_b", "t_w", "m_b", "m_w", "activation_bytes")  # what grows with a microbatch


def cluster(stage: StageProfile = STAGE, between: float = 1.0, **changes: Any) -> Profile:
    """Four ranks in two nodes: 100 GB/s inside, so many GB/s between them."""
    inside, out = Link(0.0, 100.0), tuple(product((0, 1), (2, 3)))
    cards = (out, tuple((b, a) for a, b in out))
    links = Links(Link(0.0, between), ((0, 1, inside), (2, 3, inside)), cards)
    return replace(Profile((stage,) * 4, 4, links=links), **changes)


def chosen(profile: Profile, microbatches: int = 8) -> Any:
    short: dict[str, Any] = {"solver": "heuristic", "work_limit": 0.05}
    return optimize(profile, microbatches, passing="auto", **short).to_dict()["choice"]


def test_what_is_large_stays_and_device_memory_decides() -> None:
    light_weights = replace(STAGE, weight_bytes=1e3, grad_bytes=1e3)
    assert chosen(cluster(light_weights, 0.1))["scheme"] in {"weights", "fsdp"}
    assert chosen(cluster(replace(STAGE, activation_bytes=1e3), 0.1))["scheme"] == "activations"
    # two microbatches' activations of all stages are 800 bytes: what travels needs far more
    light = StageProfile(1.0, 1.0, 1.0, 100.0, 0.0, 10.0, 100.0, 100.0, 200.0)
    best, *others = chosen(cluster(light, device_memory=(905.0,) * 4))["schemes"]
    assert (best["scheme"], best["fits"]) == ("activations", True)
    for row in others:
        assert "device memory 905" in row["why_not"] or "too small" in row["why_not"]
    # on one rank nothing travels, whatever the scheme
    choice = chosen(Profile((STAGE,), 1), 3)
    assert [row["step"] for row in choice["schemes"]] == [9.0] * 3
    assert choice["reasons"][0].startswith("activations: 9 ms per step, as with ")


def test_where_it_turns() -> None:
    """What loses at the profile's size wins beyond the size that is named, and not before it."""
    best, *others = chosen(cluster(between=0.3))["reasons"]
    turning = [each for each in others if "it wins " in each]
    assert turning, "no scheme turns on this cluster: the test says nothing"
    for line in turning:
        edge = float(line.split("microbatches ")[-1].split()[0])
        larger = "it wins from" in line
        for size in (edge * 1.3, edge * 0.7):
            grown = replace(STAGE, **{key: getattr(STAGE, key) * size for key in KEYS})
            rows = chosen(cluster(grown, 0.3))["schemes"]
            step = {row["scheme"]: row["step"] for row in rows}
            loses, wins = (step[each.partition(":")[0]] for each in (line, best))
            assert (loses < wins) == (larger == (size > edge)), (line, size)
