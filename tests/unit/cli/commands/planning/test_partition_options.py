"""``optimize`` of a profile by layers: what is written and said, and the lines of wrong input."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pipeloom import verify_schedule
from tests.support.command_line import Command, layers_document, profile_document, written

Write = Callable[..., Path]
SHORT = ("--work-limit", 0.3, "--solver", "heuristic", "-q")


@pytest.fixture
def layers(tmp_path: Path) -> Write:
    def write(**changes: Any) -> Path:
        return written(tmp_path / "layers.json", layers_document(**changes))

    return write


@pytest.mark.parametrize("way", ["joint", "balanced", "even", None])
def test_the_schedule_names_the_layers_of_each_stage(
    pipeloom: Command, layers: Write, tmp_path: Path, way: str | None
) -> None:
    target = tmp_path / "s.json"
    asked = [] if way is None else ["--partition", way]
    asked += ["--placement", "linear"]
    done = pipeloom("optimize", layers(), "-m", 4, *asked, *SHORT, "-o", target)
    assert (done.code, done.err) == (0, "")
    document = json.loads(target.read_text())
    assert verify_schedule(document) == []
    parts = [[layer["name"] for layer in s["layers"]] for s in document["profile"]["stages"]]
    assert list(chain.from_iterable(parts)) == [
        "emb",
        *(f"layers.{i}" for i in range(6)),
        "norm",
        "loss",
    ]
    assert "of all cuts: at most" in done.out
    layout = pipeloom("export", target, "--to", "megatron-layout").out
    assert layout.startswith("Et")
    assert layout.strip().endswith("L")
    assert pipeloom("compile", target, "-o", tmp_path / "program.json").code == 0


def test_json_says_what_was_chosen_and_how_good_it_is(pipeloom: Command, layers: Write) -> None:
    words = ["optimize", layers(memory_limit=9.0), "-m", 4, *SHORT, "--json"]
    answer = pipeloom(*words, "--placement", "auto").json
    partition = answer["partition"]
    assert answer["family"]
    assert partition["way"] == "joint"
    assert answer["seed"] == 0  # whichever of the searches it came from
    assert 0 < partition["lower_bound"] <= answer["period"] * (1 + 1e-9)
    assert partition["lower_bound"] <= answer["lower_bound"] * (1 + 1e-9)
    assert [part["stage"] for part in partition["parts"]] == list(range(len(partition["parts"])))
    assert partition["parts"][-1]["modules"][-2:] == ["norm", "out"]
    best = partition["cuts_searched"][0]
    assert best["placement"] == partition["placement"]
    assert best["cost"] == answer["period"]
    joint = pipeloom(*words).json["period"]
    for way in ("even", "balanced"):
        assert joint <= pipeloom(*words, "--partition", way).json["period"] * (1 + 1e-9)


def test_the_rules_are_kept(pipeloom: Command, layers: Write) -> None:
    words = ["optimize", layers(), "-m", 4, "--placement", "interleaved:2", *SHORT, "--json"]
    parts = pipeloom(*words, "--min-layers", 2, "--max-layers", 3).json["partition"]["parts"]
    assert [2 <= len(part["layers"]) <= 3 for part in parts] == [True] * 4


def test_a_profile_on_standard_input_is_read_once(
    pipeloom: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.TextIOWrapper(io.BytesIO(json.dumps(layers_document()).encode()))
    monkeypatch.setattr("sys.stdin", text)
    done = pipeloom("optimize", "-", "-m", 2, *SHORT, "--json")
    assert done.code == 0
    assert done.json["partition"]["way"] == "joint"


def test_stages_are_used_where_there_are_both(pipeloom: Command, layers: Write) -> None:
    path = layers(stages=profile_document()["stages"])
    assert "partition" not in pipeloom("optimize", path, "-m", 2, *SHORT, "--json").json
    assert (
        "partition"
        in pipeloom("optimize", path, "-m", 2, *SHORT, "--json", "--partition", "even").json
    )


def test_the_smallest_limit_is_named_and_is_enough(pipeloom: Command, layers: Write) -> None:
    words = ["optimize", layers(memory_limit=0.1), "-m", 4, *SHORT, "--placement", "linear"]
    done = pipeloom(*words)
    assert (done.code, done.out) == (1, "")
    least = "no cut fits in the memory limit; the smallest feasible one is 4.25, for rank 0"
    assert done.err == f"pipeloom: no cut fits:\npipeloom: linear: {least}\n"
    answer = pipeloom(*words, "--json").json
    assert answer["partition"]["not_possible"] == {"linear": least}
    assert (answer["smallest_memory_limit"], answer["rank"]) == (4.25, 0)
    assert pipeloom(*words, "--memory-limit", 4.25).code == 0
    assert pipeloom(*words, "--memory-limit", 4.24).code == 1


def test_a_device_that_is_too_small_for_every_cut_is_named(
    pipeloom: Command, layers: Write
) -> None:
    # the embedding with three blocks: 50 of weights and 3.25; the other three with the head: 50 and
    # 5
    done = pipeloom("optimize", layers(device_memory=50.0), "-m", 4, *SHORT)
    assert "no cut fits in device_memory; the smallest feasible one is 55, for rank 1" in done.err
    assert pipeloom("optimize", layers(device_memory=55.0), "-m", 4, *SHORT).code == 0


def test_an_answer_is_kept_in_a_cache(pipeloom: Command, layers: Write, tmp_path: Path) -> None:
    words = ["optimize", layers(), "-m", 4, *SHORT, "--placement", "auto"]
    words += ["--cache", tmp_path / "cache", "-o", tmp_path / "s.json"]
    first, second = pipeloom(*words), pipeloom(*words)
    assert first.err == ""
    assert "taken from the cache" in second.err
    assert second.out == first.out
    for other in (["--seed", 1], ["--max-layers", 7], ["--partition", "even"]):
        assert "taken from the cache" not in pipeloom(*words, *other).err
    for entry in (tmp_path / "cache").glob("*.json"):
        entry.write_text(entry.read_text().replace('"cuts_seen": ', '"cuts_seen": 1'))
    damaged = pipeloom(*words)
    assert "is ignored: its digest does not fit" in damaged.err
    assert damaged.out.splitlines()[1:4] == first.out.splitlines()[1:4]
