"""``optimize --recompute --offload``: limits that nothing else keeps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Command, profile_document

LEVERS = {"t_r": 1.0, "m_r": 0.25, "m_o": 0.25, "offload_bytes": 1e6}


@pytest.fixture
def profile(tmp_path: Path) -> str:
    return written(tmp_path, profile_document(host_link={"gigabytes_per_second": 1.0}), **LEVERS)


def written(folder: Path, document: dict[str, Any], **keys: Any) -> str:
    for stage in document["stages"]:
        stage.update(keys)
    path = folder / "levers.json"
    path.write_text(json.dumps(document))
    return str(path)


def ask(profile: str, *more: str) -> list[str]:
    limits = ["--memory-limit", "0.8", "--work-limit", "1"]
    return ["optimize", profile, "-m", "3", "--placement", "v", *limits, "-q", "--json", *more]


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ([], set()),
        (["--recompute", "none"], {"O", "L"}),
        (["--offload", "none"], {"R"}),
        (["--recompute", "all"], {"R"}),
    ],
)
def test_only_the_levers_that_are_wanted_are_pulled(
    pipeloom: Command, profile: str, tmp_path: Path, given: list[str], kinds: set[str]
) -> None:
    path = str(tmp_path / "schedule.json")
    done = pipeloom(*ask(profile, *given, "-o", path))
    assert done.code == 0
    rows = json.loads(Path(path).read_text())["order"]
    found = {op["op"] for row in rows for op in row} - {"F", "B", "W", "BW"}
    assert found == kinds if kinds else found
    assert pipeloom("verify", path).code == 0


def test_without_them_the_limit_is_too_small(pipeloom: Command, profile: str) -> None:
    done = pipeloom(*ask(profile, "--recompute", "none", "--offload", "none"))
    assert done.code == 1
    assert "the smallest feasible limit is 1" in done.err


def kinds_in(path: Path) -> set[str]:
    rows = json.loads(path.read_text())["order"]
    return {op["op"] for row in rows for op in row} - {"F", "B", "W", "BW"}


def test_every_placement_is_recomputed_where_that_is_asked_for(
    pipeloom: Command, profile: str, tmp_path: Path
) -> None:
    path = tmp_path / "schedule.json"
    asked = ["optimize", profile, "-m", "2", "--placement", "auto", "--work-limit", "0.05", "-q"]
    assert pipeloom(*asked, "--recompute", "all", "-o", str(path)).code == 0
    assert kinds_in(path) == {"R"}


def test_levels_of_older_files_may_be_null(pipeloom: Command, profile: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    assert pipeloom("build", "1f1b", profile, "-m", "4", "-o", str(path)).code == 0
    document = json.loads(path.read_text())
    for row in document["order"]:
        row[0]["level"] = None
    document["profile"]["stages"][0]["levels"] = None
    path.write_text(json.dumps(document))
    assert pipeloom("verify", str(path)).code == 0


LAYERS = {"t_f": 1.0, "t_b": 1.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5}
BY_LAYERS = ["-m", "3", "--placement", "v", "--memory-limit", "1.5", "--work-limit", "0.3", "-q"]


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (["--recompute", "none"], {"O", "L"}),
        (["--offload", "none"], {"R"}),
        (["--recompute", "all"], {"R"}),
    ],
)
def test_layers_have_only_the_levers_that_are_wanted(
    pipeloom: Command, tmp_path: Path, given: list[str], kinds: set[str]
) -> None:
    layers = by_layers(tmp_path, LAYERS | LEVERS)
    path = tmp_path / "schedule.json"
    assert pipeloom("optimize", layers, *BY_LAYERS, *given, "-o", str(path)).code == 0
    assert kinds_in(path) == kinds


def test_layers_without_levers_do_not_fit(pipeloom: Command, tmp_path: Path) -> None:
    layers = by_layers(tmp_path, LAYERS | LEVERS)
    done = pipeloom("optimize", layers, *BY_LAYERS, "--recompute", "none", "--offload", "none")
    assert (done.code, "no cut fits" in done.err) == (1, True)


def by_layers(folder: Path, cost: dict[str, float]) -> str:
    """Four layers, of which a rank's two on a V hold 2 between F and B, 1.25 with levers."""
    layer = {"name": "layers.{}", "repeat": 4, **cost}
    path = folder / "layers.json"
    document = profile_document(
        stages=None, layers=[layer], host_link={"gigabytes_per_second": 1.0}
    )
    path.write_text(json.dumps(document))
    return str(path)
