"""``optimize --passing auto``: the fastest scheme by one measure, and the reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from pipeloom import Evaluation, Profile, StageProfile, build_family, dump_profile, optimize, verify
from pipeloom.ir import Link, Links
from tests.support.command_line import Command, profile_document, written

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


def test_what_the_busiest_wire_carries() -> None:
    links = Links(Link(0.0, 1.0))
    profile = Profile((STAGE, replace(STAGE, weight_bytes=5e6)), 2, links=links)
    wire = Evaluation("", build_family("1f1b", profile, 3)).wire
    assert wire is not None
    assert (wire.bytes, wire.weight_bytes, wire.time) == (3e6, 0.0, 3.0)
    wire = Evaluation("", build_family("fsdp:1", profile, 2)).wire
    assert wire is not None
    # stage 1 is rank 1's: to rank 0 go its weights twice, and the gradient of stage 0
    assert (wire.name, wire.bytes, wire.weight_bytes) == ("1 to 0", 11e6, 11e6)
    assert Evaluation("", build_family("1f1b", replace(profile, links=None), 3)).wire is None


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


def test_the_command_writes_the_best_and_the_table(pipeloom: Command, tmp_path: Path) -> None:
    source, target = written(tmp_path / "p.json", dump_profile(cluster())), tmp_path / "s.json"
    words = ["optimize", source, "-m", 8, "--passing", "auto", "--work-limit", 0.05, "-q"]
    done = pipeloom(*words, "-o", target)
    assert (done.code, done.err) == (0, "")
    document = json.loads(target.read_text())
    assert verify(document).ok
    answer = pipeloom(*words, "--json").json
    choice, rows = answer["choice"], answer["choice"]["schemes"]
    assert (answer["passing"], choice["scheme"]) == (document["passing"], rows[0]["scheme"])
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    shown = ["chosen", *(row["scheme"] for row in rows), *choice["reasons"]]
    assert [words for words in shown if words not in done.out] == []


def test_what_does_not_fit_is_answered_with_each_reason(pipeloom: Command, tmp_path: Path) -> None:
    line = ["-m", 4, "--passing", "auto", "--work-limit", 0.05, "-q", "--json"]
    tight = written(tmp_path / "p.json", dump_profile(cluster(device_memory=(1e6,) * 4)))
    done = pipeloom("optimize", tight, *line, "-o", tmp_path / "s.json")
    schemes = done.json["choice"]["schemes"]
    assert (done.code, done.json["status"]) == (1, "infeasible")
    assert [row["fits"] for row in schemes] == [False] * 3
    assert all(f"\npipeloom: {row['scheme']}: {row['why_not']}\n" in done.err for row in schemes)
    assert not (tmp_path / "s.json").exists()
    few = written(tmp_path / "few.json", profile_document(ranks=4, num_stages=2))
    rows = pipeloom("optimize", few, *line).json["choice"]["schemes"]
    (reason,) = (row["why_not"] for row in rows if row["scheme"] == "activations")
    assert reason == "2 stages cannot fill 4 ranks"
