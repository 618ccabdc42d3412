"""Links: delays and wires by what is shared, and that whoever reads a profile reads the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pipeloom.ir.cost.traffic import over_wires
from pipeloom.ir.formats import dump_profile
from pipeloom.ir.formats.profile_document import ProfileDocument
from pipeloom.ir.formats.profile_json import parse_profile
from pipeloom.ir.formats.validation import validated
from pipeloom.ir.model.links import Link, Links, Sharing
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.network_facts import read_network

RING = Sharing.RING
SLOW = Link(4.0, 0.5)


@pytest.mark.parametrize(
    ("shared", "wires"),
    [
        (Sharing.PAIRS, ("1 to 3",)),
        (Sharing.PORTS, ("out of 1", "into 3")),
        ((((0, 1), (1, 3)), ((3, 1),), ((1, 3),)), ("1 to 3", "group 0", "group 2")),
        (RING, ("1 to 2", "2 to 3")),
    ],
)
def test_a_message_occupies_its_wires(shared: Any, wires: tuple[str, ...]) -> None:
    assert Links(Link(0.0, 1.0), shared=shared).wires(1, 3, 5) == wires


@pytest.mark.parametrize(
    ("ranks", "source", "target", "way"),
    [
        (2, 0, 1, "01"),
        (2, 1, 0, "10"),
        (3, 0, 2, "02"),
        (4, 0, 2, "012"),  # as far either way: up
        (4, 2, 0, "230"),
        (4, 0, 3, "03"),
        (5, 4, 1, "401"),
        (5, 1, 4, "104"),
        (5, 0, 3, "043"),
    ],
)
def test_the_shorter_way_round_a_ring(ranks: int, source: int, target: int, way: str) -> None:
    hops = tuple(f"{a} to {b}" for a, b in pairwise(way))
    assert Links(Link(0.0, 1.0), shared=RING).wires(source, target, ranks) == hops


def test_a_ring_s_distant_pairs_sum_up_latencies_and_take_the_least_bandwidth() -> None:
    links = Links(Link(1.0, 2.0), ((1, 2, SLOW), (4, 1, Link(0.25, 8.0))), RING)
    latency, rate = links.matrices(5)
    # 0 1 2: over the slow link; 0 4 3: over none; 1 4 has an entry of its own
    assert (latency[0, 2], rate[0, 2]) == (latency[2, 0], rate[2, 0]) == (5.0, 0.5)
    assert (latency[0, 3], rate[0, 3]) == (2.0, 2.0)
    assert (latency[1, 4], rate[1, 4]) == (0.25, 8.0)
    assert links.delays(1e6, 5)[0, 2] == 5.0 + 2.0
    # of two ways that are as long, each direction takes the one upwards
    halfway = Links(Link(1.0, 2.0), ((1, 2, SLOW),), RING).delays(0.0, 4)
    assert (halfway[0, 2], halfway[2, 0]) == (5.0, 2.0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    "shared", [Sharing.PAIRS, Sharing.PORTS, RING, (((0, 1), (2, 0)), ((1, 0),))]
)
def test_the_verifiers_read_the_same_network(ranks: int, shared: Any) -> None:
    entries = [(0, 1, SLOW), (2, 3, Link(0.5, 3.0)), (4, 1, Link(0.1, 9.0)), (1, 0, Link(9.0, 9.0))]
    pairs = tuple(entry for entry in entries if max(entry[:2]) < ranks)
    if isinstance(shared, tuple) and ranks < 3:
        shared = ()
    profile = Profile(
        (StageProfile(1, 1, 1),) * ranks, ranks, links=Links(Link(1, 2), pairs, shared)
    )
    plain = read_network(validated(ProfileDocument, dump_profile(profile), "p"))
    delays = profile.delays(3e6)
    apart = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    for a, b in apart:
        assert plain.delay(a, b, 3e6) == pytest.approx(delays[a, b])
        assert plain.transfer_delay(a, b, 3e6) == plain.delay(a, b, 3e6)
    by_plain: dict[object, set[tuple[int, int]]] = {}
    by_links: dict[object, set[tuple[int, int]]] = {}
    assert profile.links is not None
    for a, b in apart:
        for wire in plain.wires(a, b):
            by_plain.setdefault(wire, set()).add((a, b))
        for name in profile.links.wires(a, b, ranks):
            by_links.setdefault(name, set()).add((a, b))
    assert sorted(map(sorted, by_plain.values())) == sorted(map(sorted, by_links.values()))


@pytest.mark.parametrize("shared", [*Sharing, (), (((0, 1), (1, 2)), ())])
def test_what_is_shared_survives_the_file(shared: Any) -> None:
    profile = Profile((StageProfile(1, 1, 1),) * 3, 3, links=Links(Link(0.5, 2.0), (), shared))
    assert parse_profile(dump_profile(profile), "p") == profile


def test_bytes_over_a_ring_add_up_on_each_wire() -> None:
    amounts = np.array([[0.0, 1.0, 10.0], [0.0, 0.0, 0.0], [0.0, 100.0, 0.0]])
    stage = (StageProfile(1, 1, 1),)
    ring = Profile(stage, 3, links=Links(Link(0, 1), shared=RING))
    assert over_wires(ring, amounts) == {"0 to 1": 1.0, "0 to 2": 10.0, "2 to 1": 100.0}
    ports = Profile(stage, 3, links=Links(Link(0, 1), shared=Sharing.PORTS))
    assert over_wires(ports, amounts) == {
        "out of 0": 11.0, "into 1": 101.0, "into 2": 10.0, "out of 2": 100.0
    }  # fmt: skip
    assert over_wires(Profile(stage, 3), amounts) == {}
    wide = np.zeros((4, 4))
    wide[0, 2], wide[1, 2] = 5.0, 7.0
    four = Profile(stage, 4, links=Links(Link(0, 1), shared=RING))
    assert over_wires(four, wide) == {"0 to 1": 5.0, "1 to 2": 12.0}
