"""``optimize`` without ``--placement``: what is tried, and what is said of it; and
``bidirectional``, asked for alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Command, layers_document, profile_document, written

SMALL = profile_document()


def two_copies(answer: dict[str, Any]) -> list[dict[str, Any]]:
    placements = answer["choice"]["placements"]
    return [one for one in placements if one["placement"] == "bidirectional"]


def test_two_copies_are_tried_where_they_are_known_to_fit_or_asked_for(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    words = ["optimize", profile, "-m", 2, "--work-limit", 0.1, "-q"]
    words += ["-o", tmp_path / "schedule.json", "--json"]
    (left_out,) = two_copies(pipeloom(*words).json)
    assert left_out["lower_bound"] is None
    assert "no device_memory in the profile" in left_out["reason"]
    assert "--copies 2" in left_out["reason"]
    (asked_for,) = two_copies(pipeloom(*words, "--copies", 2).json)
    assert asked_for["lower_bound"] is not None
    assert two_copies(pipeloom(*words, "--copies", 1).json) == []
    document = json.loads(profile.read_text()) | {"device_memory": 100.0}
    for stage in document["stages"]:
        stage |= {"weight_bytes": 1.0, "grad_bytes": 1.0, "optimizer_bytes": 1.0}
    profile.write_text(json.dumps(document))
    (counted,) = two_copies(pipeloom(*words).json)
    assert counted["lower_bound"] is not None
    del document["stages"][0]["optimizer_bytes"]
    profile.write_text(json.dumps(document))
    (left_out,) = two_copies(pipeloom(*words).json)
    assert "no optimizer_bytes in the profile" in left_out["reason"]


def test_what_needs_more_stages_than_the_source_makes_is_refused_in_a_line(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    document = json.loads(profile.read_text())
    stages = len(document["stages"])
    profile.write_text(json.dumps(document | {"max_stages": stages}))
    owners = tmp_path / "owners.json"
    owners.write_text(json.dumps([*range(stages), *range(stages)]))
    told = f"max_stages: expected at least {2 * stages}, one for each stage, got {stages}: "
    for words in (
        ["optimize", profile, "--placement", "wave:1"],
        ["optimize", profile, "--placement", owners],
        ["build", "zb-v", profile],
        ["build", "interleaved-1f1b", profile],
    ):
        done = pipeloom(*words, "-m", stages)
        assert told in done.err
        assert (done.code, done.err.count("\n")) == (2, 1)
    shown = pipeloom("compare", profile, "-m", stages, "--no-optimizer").out
    assert told in " ".join(shown.split())
    assert pipeloom("optimize", profile, "-m", 4, "--work-limit", 0.1, "-q").code == 0


def test_copies_are_for_auto_alone(pipeloom: Command, profile: Path) -> None:
    done = pipeloom("optimize", profile, "-m", 2, "--placement", "v", "--copies", 2)
    assert done.code == 2
    assert "--copies: expected it with --placement auto" in done.err
    assert "got 2 with --placement v" in done.err


def test_one_placement_tells_of_a_device_that_is_too_small(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    document = json.loads(profile.read_text())
    words = ["optimize", profile, "-m", 4, "--work-limit", 0.1, "-q", "-o", tmp_path / "s.json"]
    words += ["--placement", "linear"]
    for device, told in ((1e9, False), (1e-3, True)):
        profile.write_text(json.dumps(document | {"device_memory": device}))
        done = pipeloom(*words)
        assert done.code == 0
        assert (f"note: {profile}: device_memory: rank 0 holds" in done.err) is told


def test_two_copies_are_asked_for_alone(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    words = ["optimize", profile, "--placement", "bidirectional", "--work-limit", 0.1, "-q"]
    assert pipeloom(*words, "-m", 4, "-o", path).code == 0
    assert pipeloom("verify", path).code == 0
    ranks = [{op["stage"] for op in row} for row in json.loads(path.read_text())["order"]]
    assert ranks == [{0, 1}, {0, 1}]
    document = json.loads(profile.read_text())
    profile.write_text(json.dumps(document | {"device_memory": 1e-3}))
    assert "rank 0 holds" in pipeloom(*words, "-m", 4, "-o", path).err


@pytest.mark.parametrize(
    ("document", "more", "line"),
    [
        (SMALL, ["-m", 1], "placement bidirectional needs two microbatches, one each way"),
        (
            SMALL | {"ranks": 3, "num_stages": 3, "stages": SMALL["stages"][:1]},
            ["-m", 2],
            "placement bidirectional needs an even number of ranks, not 3",
        ),
        (SMALL, ["--recompute", "all"], "--recompute: expected none with --placement bidire"),
        (SMALL, ["--solver", "milp"], "--solver: expected auto or heuristic, got 'milp'"),
        (SMALL, ["--for", "megatron"], "--placement: expected linear or interleaved, as"),
        (layers_document(), [], "--placement: expected a profile by stages with bidirecti"),
    ],
)
def test_what_two_copies_are_not_for(
    pipeloom: Command, tmp_path: Path, document: dict[str, Any], more: list[str | int], line: str
) -> None:
    path = written(tmp_path / "p.json", document)
    words = ["optimize", path, "--placement", "bidirectional", "--work-limit", 0.1, "-m", 2, *more]
    assert line in pipeloom(*words).refusal
