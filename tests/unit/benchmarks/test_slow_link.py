"""The pure parts of the slow-link benchmark: the ring's plan, its figures, its predictions."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks import of_part
from benchmarks.recording import Record
from benchmarks.slow_link import NAMES, RING, cases, judge
from benchmarks.slow_link.configurations import CONFIGURATIONS
from benchmarks.slow_link.measuring import RankRun, measured
from benchmarks.slow_link.network import Names, Ring, address, commands, way
from benchmarks.slow_link.prediction import fully_sharded, wires
from pipeloom.ir.model.links import Link, Links, Sharing
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import build_family

FAST, SLOW = Link(0.0, 1.0), Link(0.5, 0.001)  # a gigabyte, a megabyte a second
LINKS = Links(FAST, ((1, 2, SLOW),), Sharing.RING)


@pytest.mark.parametrize("ranks", [3, 4, 5, 8])
def test_messages_go_the_way_that_profiles_say(ranks: int) -> None:
    for source in range(ranks):
        for target in range(ranks):
            passed = way(source, target, ranks)
            names = tuple(f"{a} to {b}" for a, b in pairwise(passed))
            assert names == LINKS.wires(source, target, ranks)


def test_routes_lead_along_the_ring() -> None:
    """Followed from namespace to namespace, every address is reached by the way of ``way``."""
    ranks, routes = 5, {}
    names = Names.of(ranks, maker=1)
    for line in commands(Ring(ranks), names):
        if line[2] in names.routers and line[3:5] == ["route", "add"]:
            routes[names.routers.index(line[2]), line[5]] = line[line.index("dev") + 1]
    for source in range(ranks):
        for target in set(range(ranks)) - {source}:
            here, passed = source, [source]
            while here != target:
                step = 1 if routes[here, f"{address(target)}/32"] == "above" else -1
                here = (here + step) % ranks
                passed.append(here)
            assert passed == way(source, target, ranks)


def test_step_times_are_the_intervals_after_the_warm_up() -> None:
    """Two ranks, two rounds: ends 1 ms and 3 ms apart, then 2 ms; the first step does not count."""
    rounds = [
        [RankRun((9.0, 9.001, 9.004), ((2.0,), (1.0,)), {"above": 5, "below": 1})] * 2,
        [RankRun((0.0, 0.001, 0.003), ((2.0,), (1.0,)), {"above": 7, "below": 3})] * 2,
    ]
    result = measured(rounds, warmup=1)
    assert result.step_ms == pytest.approx(1.5)
    assert (result.least_ms, result.most_ms) == pytest.approx((1.0, 3.0))
    assert result.losses == (2.0, 1.0)
    assert result.wires == ((6, 2), (6, 2))


def profile(ranks: int = 4) -> Profile:
    stage = StageProfile(1.0, 2.0, 3.0, activation_bytes=10, weight_bytes=4000, grad_bytes=4000)
    return Profile((stage,) * ranks, ranks, links=LINKS)


def test_bytes_over_each_link() -> None:
    """Activations up and their gradients down three links, M of each; none over the ring's end."""
    schedule = build_family("1f1b", profile(), 6)
    assert wires(schedule) == [(60, 60), (60, 60), (60, 60), (0, 0)]


def test_bytes_of_forwarded_messages_count_on_each_link_that_they_pass() -> None:
    """fsdp, M = P: per stage two weights to each other rank and a gradient back. Of the ways 0-1-2,
    1-2-3, 2-3-0, 3-0-1 each link lies on two, upwards, beside its own."""
    assert wires(build_family("fsdp", profile(), 4)) == [(3 * 3 * 4000, 3 * 4000)] * 4


def test_fully_sharded_steps_by_hand() -> None:
    """Four stages of 6 ms; a hop is .5 ms and 1000 bytes at a megabyte a second, 12 hops a
    stage."""
    assert fully_sharded(profile(), 8) == pytest.approx(2 * 4 * (6.0 + 12 * 1.5))


def test_the_record_has_no_fault_and_winners_of_each_kind() -> None:
    rows = of_part(Record.of("slow_link").rows, RING)
    assert len(rows) >= 6
    assert all(claim.met for claim in judge(rows))
    alone = {row["winners"][0] for row in rows if len(row["winners"]) == 1}
    assert alone >= {"activations", "weights", "fsdp"}


def test_each_configuration_is_a_case() -> None:
    assert [one.name for one in CONFIGURATIONS] == list(NAMES)
    assert [case.name for case in cases("usual") if case.part == RING] == list(NAMES)
