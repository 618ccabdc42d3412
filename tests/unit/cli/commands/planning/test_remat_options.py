"""``optimize --recompute --offload``: limits that nothing else keeps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Command, profile_document

LEVERS = {"t_r": 1.0, "m_r": 0.25, "m_o": 0.25, "offload_bytes": 1e6}


LEVELS = [{"name": "part", "t_r": 0.25, "m_r": 0.5}, {"name": "full", "t_r": 1.0, "m_r": 0.25}]


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
        (
            {"levels": [{"name": "a", "t_r": 1.0}]},
            "stages[0]: levels[0]: m_r: missing; expected a finite number >= 0",
        ),
        (
            {"levels": [LEVELS[0], LEVELS[0]]},
            'stages[0]: levels[1]: name: expected each name once, got "part"',
        ),
        (
            {"levels": [LEVELS[0] | {"m_r": 2.0}]},
            "stages[0]: levels[0]: m_r: expected at most m_b (1), got 2.0",
        ),
        (
            {"levels": [LEVELS[0] | {"name": "all"}]},
            'levels[0]: name: expected a name other than auto, all and none, got "all"',
        ),
        (
            {"levels": LEVELS, "t_r": 1.0, "m_r": 0.5},
            "stages[0]: levels: expected them instead of t_r and m_r",
        ),
        (
            {"levels": [LEVELS[0] | {"name": str(n)} for n in range(17)]},
            "stages[0]: levels: expected at most 16 levels, got 17",
        ),
        ({"levels": "full"}, 'stages[0]: levels: expected a list, got "full"'),
    ],
)
def test_a_profile_that_says_half_is_refused(
    pipeloom: Command, tmp_path: Path, keys: dict[str, Any], line: str
) -> None:
    done = pipeloom(*ask(written(tmp_path, profile_document(), **keys)))
    assert done.code == 2
    assert line in done.err


def test_a_part_of_a_forward_is_told_before_it_is_run(pipeloom: Command, tmp_path: Path) -> None:
    given = written(tmp_path, profile_document(), levels=LEVELS)
    schedule, program = tmp_path / "schedule.json", tmp_path / "program.json"
    room = ["--memory-limit", "1.5", "--placement", "linear"]
    done = pipeloom(*ask(given, *room, "--recompute", "part", "-o", str(schedule)))
    assert "(level 'part'), which `run` does not know" in done.err
    done = pipeloom("compile", schedule, "-o", program)
    assert f"{schedule}: 0R" in done.err
    assert "(level 'part'), which `run` does not know" in done.err
    done = pipeloom("run", program, "--model", "absent:model")
    assert done.code == 2
    assert done.err.startswith(f"pipeloom: {program}: program: ")
    assert "expected a level that `pipeloom profile --levels` has found" in done.err
    whole = pipeloom(*ask(given, *room, "--recompute", "full", "-o", str(schedule)))
    assert "(level" not in whole.err + pipeloom("compile", schedule, "-o", program).err


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


@pytest.mark.parametrize(
    ("given", "levels"),
    [([], {0, 1}), (["--recompute", "part"], {0}), (["--recompute", "full"], {0})],
)
def test_levels_are_chosen_or_named(
    pipeloom: Command, tmp_path: Path, given: list[str], levels: set[int]
) -> None:
    profile, path = written(tmp_path, profile_document(), levels=LEVELS), tmp_path / "x.json"
    asked = [
        *ask(profile, *given, "-o", str(path)),
        "--memory-limit",
        "1.6",
        "--placement",
        "linear",
    ]
    assert pipeloom(*asked).code == 0
    rows = json.loads(path.read_text())["order"]
    found = {op.get("level", 0) for row in rows for op in row if op["op"] == "R"}
    assert found
    assert found <= levels
    assert pipeloom("verify", str(path)).code == 0


def test_a_level_that_there_is_not_is_told_those_that_there_are(
    pipeloom: Command, tmp_path: Path
) -> None:
    done = pipeloom(*ask(written(tmp_path, profile_document(), levels=LEVELS)), "--recompute", "x")
    assert done.code == 2
    assert "recompute: expected part, full, auto, all or none, got 'x'" in done.err


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"level": 1}, "level: expected none but of an R, got 1"),
        ({"op": "R", "level": 16}, "level: expected a whole number >= 0 and <= 15, got 16"),
        ({"op": "R", "level": "full"}, 'expected a whole number >= 0 and <= 15, got "full"'),
    ],
)
def test_levels_in_a_schedule_are_of_recomputations(
    pipeloom: Command, profile: str, tmp_path: Path, entry: dict[str, Any], line: str
) -> None:
    path = tmp_path / "schedule.json"
    assert pipeloom("build", "1f1b", profile, "-m", "4", "-o", str(path)).code == 0
    document = json.loads(path.read_text())
    document["order"][0][0] |= entry
    path.write_text(json.dumps(document))
    done = pipeloom("verify", str(path))
    assert (done.code, line in done.err) == (2, True)


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
