"""``optimize --passing auto``: the fastest scheme by one measure, and the reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pipeloom import (
    Evaluation,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    build_family,
    dump_profile,
    verify_schedule,
)
from pipeloom import solve as optimize
from pipeloom.ir import parse_schedule
from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.planner.passing import reasons
from pipeloom.planner.passing.choose import LEVEL, fastest
from pipeloom.solver.families.weights.fsdp import FSDP
from tests.support.command_line import Command, profile_document, written
from tests.support.inner import Link, Links, Sharing, choose

STAGE = StageProfile(1.0, 1.0, 1.0, 100.0, 50.0, 1e6, 1e6, 1e6, 2e6)


def search(problem: Problem, scheme: str, share: float) -> Schedule:
    return optimize(problem, solver="heuristic", work_limit=0.05 * share)


find = partial(choose, search=search)


def cluster(stage: StageProfile = STAGE, between: float = 1.0, **changes: Any) -> Profile:
    """Four ranks in two nodes: 100 GB/s inside, so many GB/s between them."""
    inside, out = Link(0.0, 100.0), tuple(product((0, 1), (2, 3)))
    cards = (out, tuple((b, a) for a, b in out))
    links = Links(Link(0.0, between), ((0, 1, inside), (2, 3, inside)), cards)
    return replace(Profile((stage,) * 4, 4, links=links), **changes)


def test_large_activations_make_weights_travel_and_large_weights_activations() -> None:
    heavy = cluster(replace(STAGE, weight_bytes=1e3, grad_bytes=1e3), 0.1)
    best = find(heavy, 8).best
    assert best is not None
    assert best.scheme in {"weights", "fsdp"}
    light = cluster(replace(STAGE, activation_bytes=1e3), 0.1)
    best = find(light, 8).best
    assert best is not None
    assert best.scheme == "activations"


def test_device_memory_decides_and_says_so() -> None:
    """Two microbatches' activations of all stages are 800 bytes: what travels needs far more."""
    light = StageProfile(1.0, 1.0, 1.0, 100.0, 0.0, 10.0, 100.0, 100.0, 200.0)
    choice = find(cluster(light, device_memory=(905.0,) * 4), 8)
    assert choice.best is not None
    assert choice.best.scheme == "activations"
    assert max(choice.best.memory.total) <= 905.0
    for row in choice.rows:
        if row.why_not is not None:
            assert "device memory 905" in row.why_not or "too small" in row.why_not
    assert any(row.why_not for row in choice.rows)


def test_nothing_is_searched_once_it_is_told_to_stop() -> None:
    def never(problem: Problem, scheme: str, share: float) -> Schedule:
        raise AssertionError("searched")

    choice = choose(cluster(), 4, search=never, should_stop=lambda: True)
    assert choice.best is not None
    assert {row.name for row in choice.rows if row.planned} >= {"fsdp:0"}  # the first alone


def test_what_the_busiest_wire_carries() -> None:
    links = Links(Link(0.0, 1.0))
    profile = Profile((STAGE, replace(STAGE, weight_bytes=5e6)), 2, links=links)
    wire = Evaluation("", build_family("1f1b", profile, 3)).wire
    assert wire is not None
    assert (wire.bytes, wire.weight_bytes, wire.time) == (3e6, 0.0, 3.0)
    row = Evaluation("", build_family("fsdp:1", profile, 2))
    assert row.wire is not None
    # stage 1 is rank 1's: to rank 0 go its weights twice, and the gradient of stage 0
    assert row.wire.name == "1 to 0"
    assert (row.wire.bytes, row.wire.weight_bytes) == (11e6, 11e6)
    assert Evaluation("", build_family("1f1b", replace(profile, links=None), 3)).wire is None


def test_where_it_turns() -> None:
    """The loser loses at the profile's size, and on the losing side of the turn; then it wins."""
    choice = find(cluster(between=0.3), 8)
    best = choice.best
    assert best is not None
    turned = 0
    for other in choice.usable[1:]:
        words = reasons.turns(other, best)
        if words is None:
            assert not other.step_time_at(1.0) < best.step_time_at(1.0)
            continue
        turned += 1
        edge = float(words.split("microbatches ")[1].split()[0])
        beyond, before = (1.2, 0.8) if words.startswith("from") else (0.8, 1.2)
        assert other.step_time_at(edge * beyond) < best.step_time_at(edge * beyond), words
        assert other.step_time_at(edge * before) >= best.step_time_at(edge * before), words
    assert turned, "no scheme turns on this cluster: the test says nothing"


def write(path: Path, profile: Profile) -> Path:
    path.write_text(json.dumps(dump_profile(profile)))
    return path


def test_the_command_writes_the_best_and_the_table(pipeloom: Command, tmp_path: Path) -> None:
    source, target = write(tmp_path / "p.json", cluster()), tmp_path / "s.json"
    words = ["optimize", source, "-m", 8, "--passing", "auto", "--work-limit", 0.05, "-q"]
    done = pipeloom(*words, "-o", target)
    assert (done.code, done.err) == (0, "")
    document = json.loads(target.read_text())
    assert verify_schedule(document) == []
    assert "chosen" in done.out
    answer = pipeloom(*words, "--json").json
    rows = answer["choice"]["schemes"]
    assert answer["passing"] == document["passing"]
    assert rows[0]["scheme"] == answer["choice"]["scheme"]
    assert rows[0]["step"] == pytest.approx(step_between_ops(parse_schedule(document, "")))
    for row in rows:
        assert row["scheme"] in done.out
        assert row["fits"] is (row["why_not"] is None)
    assert [line for line in answer["choice"]["reasons"] if line not in done.out] == []


def test_nothing_fits_is_answered_with_each_reason(pipeloom: Command, tmp_path: Path) -> None:
    source = write(tmp_path / "p.json", cluster(device_memory=(1e6,) * 4))
    words = ["optimize", source, "-m", 4, "--passing", "auto", "--work-limit", 0.05, "-q"]
    done = pipeloom(*words, "--json")
    assert done.code == 1
    assert done.json["status"] == "infeasible"
    assert [row["fits"] for row in done.json["choice"]["schemes"]] == [False] * 3
    err = pipeloom(*words, "-o", tmp_path / "s.json").err
    assert err.startswith("pipeloom: no scheme fits:\npipeloom: scheme ")
    for row in done.json["choice"]["schemes"]:
        assert f"\npipeloom: {row['scheme']}: {row['why_not']}\n" in err
    assert not (tmp_path / "s.json").exists()


def test_fewer_stages_than_ranks(pipeloom: Command, tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", profile_document(ranks=4, num_stages=2))
    words = ["optimize", path, "-m", 4, "--passing", "auto", "--work-limit", 0.05, "-q", "--json"]
    done = pipeloom(*words)
    assert done.code == 0
    rows = {row["scheme"]: row for row in done.json["choice"]["schemes"]}
    assert rows["activations"]["why_not"] == "2 stages cannot fill 4 ranks"


def test_steps_of_the_same_length_are_called_so() -> None:
    """On one rank nothing travels, whatever the scheme."""
    choice = find(Profile((STAGE,), 1), 3)
    assert [row.step_time for row in choice.usable] == [9.0] * 3
    assert reasons.sentences(choice)[0].startswith("activations: 9 ms a step, as with ")


def with_step(row: Evaluation, step_time: float) -> Evaluation:
    """``row`` as if its step took so long."""
    other = replace(row)
    vars(other).update(vars(row) | {"step_time": step_time})
    return other


def prefetched(depth: int, profile: Profile, microbatches: int) -> Schedule:
    """``fsdp`` of a depth that no name has: its weights come earlier."""
    return FSDP(depth).build(build_family("fsdp", profile, microbatches).problem)


def test_of_level_steps_the_one_with_more_slack_is_taken() -> None:
    """A weight that comes just in time comes late on a link that is a little slower than
    measured."""
    slow, fast = Link(0.06, 0.025), Link(0.06, 0.128)
    stage = StageProfile(60.0, 60.0, 60.0, weight_bytes=1.24e6, grad_bytes=1.24e6)
    links = Links(fast, ((1, 2, slow),), Sharing.RING)
    profile = Profile((stage,) * 4, 4, links=links)
    tight, ahead = (Evaluation("fsdp", prefetched(k, profile, 4)) for k in (1, 2))
    assert abs(tight.step_time - ahead.step_time) <= LEVEL * ahead.step_time
    assert tight.strained > ahead.strained
    assert fastest([tight, ahead]) is fastest([ahead, tight]) is ahead
    late = with_step(ahead, tight.step_time * 1.01)
    assert fastest([tight, late]) is tight
