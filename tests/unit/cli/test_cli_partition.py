"""``optimize`` of a profile by layers: what is written and said, and the lines of wrong input."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pipeloom.ir.verify import verify_schedule
from tests.unit.cli.support import Command, layers_document, profile_document

Write = Callable[..., Path]
SHORT = ("--work-limit", 0.3, "--solver", "heuristic", "-q")


@pytest.fixture
def layers(tmp_path: Path) -> Write:
    def write(**changes: Any) -> Path:
        path = tmp_path / "layers.json"
        path.write_text(json.dumps(layers_document(**changes)))
        return path

    return write


@pytest.mark.parametrize("way", ["joint", "balanced", "even", None])
def test_the_schedule_names_the_layers_of_each_stage(
    pipeloom: Command, layers: Write, tmp_path: Path, way: str | None
) -> None:
    target = tmp_path / "s.json"
    asked = [] if way is None else ["--partition", way]
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


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--partition", "best"], "argument --partition: invalid choice: 'best'"),
        (["--min-layers", "0"], "argument --min-layers: expected a whole number >= 1, got '0'"),
        (
            ["--min-layers", "3", "--max-layers", "2"],
            "--max-layers: expected at least --min-layers (3), got 2",
        ),
        (
            ["--max-layers", "3"],
            "layers: linear: no cut of 9 layers into 2 stages has at least 1 and at most 3 in each",
        ),
        (
            ["--placement", "interleaved:6"],
            "layers: interleaved:6: 8 layers that may be cut apart are fewer than its 12 stages",
        ),
        (
            ["--passing", "weights"],
            "--passing: expected activations for a profile by layers, got 'weights'",
        ),
    ],
)
def test_wrong_usage_is_one_line(
    pipeloom: Command, layers: Write, words: list[str], line: str
) -> None:
    done = pipeloom("optimize", layers(), "-m", 4, *words)
    assert done.code == 2
    assert line in done.err
    assert len(done.err.splitlines()) == 1


def test_what_has_no_layers_is_not_cut(pipeloom: Command, profile: Path) -> None:
    done = pipeloom("optimize", profile, "-m", 4, "--partition", "joint")
    assert done.code == 2
    assert done.err.endswith("profile.json: layers: missing; expected a list for --partition\n")
    done = pipeloom("optimize", profile, "-m", 4, "--max-layers", 3)
    assert done.err.endswith("layers: missing; expected a list for --max-layers\n")


def test_other_commands_say_that_layers_are_to_be_cut(pipeloom: Command, layers: Write) -> None:
    done = pipeloom("build", "1f1b", layers(), "-m", 4)
    assert done.code == 2
    assert "stages: missing; expected a list (it has layers, which optimize alone cuts)" in done.err


def test_nothing_fits(pipeloom: Command, layers: Write) -> None:
    done = pipeloom("optimize", layers(memory_limit=0.1), "-m", 4, *SHORT)
    assert done.code == 1
    assert "no cut fits:\nlinear: no cut fits in memory" in done.err
    done = pipeloom("optimize", layers(memory_limit=0.1), "-m", 4, *SHORT, "--json")
    assert done.json["partition"]["not_possible"] == {"linear": "no cut fits in memory"}


def test_misspelt_keys_of_layers_are_named(pipeloom: Command, layers: Write) -> None:
    path = layers()
    document = json.loads(path.read_text())
    document["layers"][0]["weights_bytes"] = 1
    path.write_text(json.dumps(document))
    done = pipeloom("optimize", path, "-m", 2, *SHORT, "--json")
    assert "layers[0]: weights_bytes: unknown key, not used; did you mean weight_bytes?" in done.err
