"""The pure parts of the slow-link benchmark: the ring's plan, its figures, its predictions."""

from __future__ import annotations

import ipaddress
from itertools import pairwise

import pytest

from benchmarks.slow_link import last_results, main
from benchmarks.slow_link.experiment import allclose, faults, winners
from benchmarks.slow_link.measuring import RankRun, measured
from benchmarks.slow_link.network import (
    Names,
    Ring,
    address,
    commands,
    ends,
    maker_of,
    namespaces,
    port,
    way,
)
from benchmarks.slow_link.prediction import fully_sharded, wires
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.links import Link, Links, Sharing
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import build_family

FAST, SLOW = Link(0.0, 1.0), Link(0.5, 0.001)  # a gigabyte, a megabyte a second
LINKS = Links(FAST, ((1, 2, SLOW),), Sharing.RING)


@pytest.mark.parametrize(
    ("source", "target", "ranks", "passed"),
    [
        (0, 1, 4, [0, 1]),
        (0, 3, 4, [0, 3]),
        (0, 2, 4, [0, 1, 2]),
        (2, 0, 4, [2, 3, 0]),
        (4, 1, 5, [4, 0, 1]),
        (1, 4, 5, [1, 0, 4]),
    ],
)
def test_the_shorter_way_round(source: int, target: int, ranks: int, passed: list[int]) -> None:
    assert way(source, target, ranks) == passed


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


def test_every_interface_has_a_rate_and_the_slow_link_the_slow_one() -> None:
    names = Names(tuple("abcd"), tuple("ABCD"))
    rates = {
        (line[2], line[6]): line[line.index("rate") + 1]
        for line in commands(Ring(slow=2), names)
        if line[0] == "tc"
    }
    slow = {("C", "above"), ("D", "below")}
    assert rates == {
        (name, device): "200mbit" if (name, device) in slow else "1000mbit"
        for name in "ABCD"
        for device in ("above", "below")
    }


def test_the_ends_of_a_link_are_alone_in_their_network() -> None:
    networks = set()
    for link in range(64):
        a, b = (ipaddress.ip_interface(f"{end}/30") for end in ends(link))
        assert a.network == b.network
        networks.add(a.network)
    for rank in range(64):
        own, router = (ipaddress.ip_interface(f"{end(rank)}/30") for end in (address, port))
        assert own.network == router.network
        networks.add(own.network)
    assert len(networks) == 128


@pytest.mark.parametrize(("key", "value"), [("ranks", 2), ("ranks", 65), ("slow", 4), ("slow", -1)])
def test_rings_that_cannot_be(key: str, value: int) -> None:
    with pytest.raises(InputError, match=f"^{key}: expected"):
        Ring(**{key: value})


def test_whose_namespace_it_is() -> None:
    names = Names.of(2, maker=12)
    assert [maker_of(name) for name in (*names.ranks, *names.routers)] == [12] * 4
    assert [maker_of(name) for name in ("pipeloom", "pipeloom-x-rank1", "other-1-rank2")] == [
        None
    ] * 3


@pytest.mark.parametrize("tool", ["ip", "tc"])
def test_without_a_tool_one_line_says_so(
    tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == tool else name)
    assert main([]) == 2
    assert capsys.readouterr().err.startswith(f"slow_link: {tool}: not found")


def test_others_than_root_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "slow_link: user: expected root, who alone may make network namespaces\n"
    )


def test_what_was_made_is_removed_when_a_command_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made, removed = [], []

    def run(line: list[str]) -> None:
        made.append(line)
        if line[0] == "tc":
            raise InputError("no such qdisc")

    monkeypatch.setattr("benchmarks.slow_link.network.need_tools", lambda: None)
    monkeypatch.setattr("benchmarks.slow_link.network.remove_left_behind", lambda: None)
    monkeypatch.setattr("benchmarks.slow_link.network._run", run)
    monkeypatch.setattr("benchmarks.slow_link.network._remove", removed.append)
    with pytest.raises(InputError, match="qdisc"), namespaces(Ring()):
        pass
    assert removed == [line[3] for line in made if line[:3] == ["ip", "netns", "add"]]
    assert len(removed) == 8


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


def result(**changes: object) -> dict[str, object]:
    row = {"scheme": "activations", "predicted_ms": 100.0, "measured_ms": 110.0, "error": -0.09}
    other = {**row, "scheme": "fsdp", "losses": [5.0, 4.0]}
    return {
        "name": "long",
        "schemes": [{**row, "losses": [5.0, 4.0 + 1e-6]}, {**other, **changes}],
        "auto": "fsdp",
        "winners": ["fsdp"],
    }


def test_what_is_wrong_with_a_result() -> None:
    assert faults(result()) == []
    assert faults(result(error=0.2, predicted_ms=132.0)) == [
        "long: fsdp: predicted 132 ms, measured 110"
    ]
    assert faults(result(losses=[5.0, 4.1])) == ["long: fsdp: losses are not those of activations"]
    wrong = {**result(), "winners": ["weights"]}
    assert faults(wrong) == ["long: auto picks fsdp, weights is faster"]


def test_step_times_within_a_percent_are_one() -> None:
    times = {"weights": 100.9, "fsdp": 100.0, "activations": 101.1}
    rows = [{"scheme": name, "measured_ms": time} for name, time in times.items()]
    assert winners(rows) == ["weights", "fsdp"]


def test_losses_of_another_length_are_not_equal() -> None:
    assert not allclose([1.0], [1.0, 2.0])


def test_the_record_has_no_fault_and_winners_of_each_kind() -> None:
    results = last_results([])
    assert len(results) >= 6
    assert [fault for result in results for fault in faults(result)] == []
    alone = {result["winners"][0] for result in results if len(result["winners"]) == 1}
    assert alone >= {"activations", "weights", "fsdp"}
