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


def test_what_cannot_be_recomputed_is_named(pipeloom: Command, tmp_path: Path) -> None:
    plain = written(tmp_path, profile_document())
    done = pipeloom(*ask(plain, "--recompute", "all"))
    assert done.code == 2
    assert "t_r: missing; expected it with m_r for --recompute all" in done.err


@pytest.mark.parametrize("passing", ["weights", "auto"])
def test_all_are_recomputed_only_where_activations_travel(
    pipeloom: Command, profile: str, passing: str
) -> None:
    asked = ["optimize", profile, "-m", "4", "-q", "--recompute", "all", "--passing", passing]
    done = pipeloom(*asked)
    assert done.code == 2
    assert f"expected activations with --recompute all, got '{passing}'" in done.err


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"t_r": 1.0}, "stages[0]: m_r: missing; expected it beside t_r"),
        ({"m_r": 1.0}, "stages[0]: t_r: missing; expected it beside m_r"),
        ({"m_o": 2.0}, "stages[0]: m_o: expected at most m_b (1), got 2.0"),
    ],
)
def test_a_profile_that_says_half_is_refused(
    pipeloom: Command, tmp_path: Path, keys: dict[str, Any], line: str
) -> None:
    done = pipeloom(*ask(written(tmp_path, profile_document(), **keys)))
    assert done.code == 2
    assert line in done.err


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


def test_levels_of_older_files_are_refused_in_one_line(
    pipeloom: Command, profile: str, tmp_path: Path
) -> None:
    path = tmp_path / "schedule.json"
    assert pipeloom("build", "1f1b", profile, "-m", "4", "-o", str(path)).code == 0
    document = json.loads(path.read_text())
    for row in document["order"]:
        row[0]["level"] = None
    document["profile"]["stages"][0]["levels"] = None
    path.write_text(json.dumps(document))
    assert pipeloom("verify", str(path)).code == 0
    for row in document["order"]:
        row[0]["level"] = 1
    path.write_text(json.dumps(document))
    done = pipeloom("verify", str(path))
    assert (done.code, done.err) == (
        2,
        f"pipeloom: {path}: schedule: order[0][0]: level: was removed in 0.2.0; an R "
        "recomputes a whole forward\n",
    )
    levels = [{"name": "part", "t_r": 0.25, "m_r": 0.5}]
    given = written(tmp_path, profile_document(), levels=levels)
    done = pipeloom(*ask(given))
    assert (done.code, done.err) == (
        2,
        f"pipeloom: {given}: stages[0]: levels: was removed in 0.2.0; t_r and m_r say how a stage "
        "is recomputed, whole\n",
    )


def test_what_to_recompute_is_no_name(pipeloom: Command, profile: str) -> None:
    done = pipeloom(*ask(profile), "--recompute", "full")
    assert done.code == 2
    assert "invalid choice: 'full' (choose from " in done.err


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


def test_layers_without_levers_do_not_fit_or_are_refused(pipeloom: Command, tmp_path: Path) -> None:
    layers = by_layers(tmp_path, LAYERS | LEVERS)
    done = pipeloom("optimize", layers, *BY_LAYERS, "--recompute", "none", "--offload", "none")
    assert (done.code, "no cut fits" in done.err) == (1, True)
    done = pipeloom("optimize", by_layers(tmp_path, LAYERS), *BY_LAYERS, "--recompute", "all")
    assert done.code == 2
    assert "layers: t_r: missing; expected it with m_r for --recompute all" in done.err


def by_layers(folder: Path, cost: dict[str, float]) -> str:
    """Four layers, of which a rank's two on a V hold 2 between F and B, 1.25 with levers."""
    layer = {"name": "layers.{}", "repeat": 4, **cost}
    path = folder / "layers.json"
    document = profile_document(
        stages=None, layers=[layer], host_link={"gigabytes_per_second": 1.0}
    )
    path.write_text(json.dumps(document))
    return str(path)
