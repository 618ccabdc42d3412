"""``optimize`` without ``--placement``: what is tried, and what is said of it; and
``bidirectional``, asked for alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.command_line import Command


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
