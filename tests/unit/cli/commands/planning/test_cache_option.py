"""``optimize --cache``: the second time is a hit, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import Command, profile_document

WORDS = ("-m", 3, "--time-limit", 1, "-q", "--json")


def test_the_second_time_is_a_hit(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    words = ["optimize", profile, *WORDS, "--cache", tmp_path / "cache"]
    first, second = pipeloom(*words), pipeloom(*words)
    assert "cache" not in first.err
    assert "taken from the cache" in second.err
    assert "choice" in first.json
    assert second.json == first.json  # how long each placement was searched, too
    one = [*words, "--placement", "linear"]
    first, second = pipeloom(*one), pipeloom(*one)
    assert second.json == first.json  # the seconds of the solve too


def test_the_environment_names_a_cache_for_every_command_that_optimizes(
    pipeloom: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELOOM_CACHE", str(tmp_path / "cache"))
    assert pipeloom("compare", profile, *WORDS).code == 0
    assert "taken from the cache" in pipeloom("optimize", profile, *WORDS).err


def test_what_was_compared_by_step_answers_no_question_of_the_objective(
    pipeloom: Command, tmp_path: Path
) -> None:
    path, cache = tmp_path / "p.json", ("--cache", tmp_path / "cache", "-q", "--json")
    path.write_text(json.dumps(profile_document(ranks=2, num_stages=2)))
    auto = ("optimize", path, "-m", 2, "--passing", "auto", "--work-limit", 1)
    pipeloom(*auto, *cache)
    assert "weights: taken from the cache" in pipeloom(*auto, *cache).err
    # as much work as of the 1 is for weights; activations get 4/7
    alone = ("optimize", path, "-m", 2, "--passing", "weights", "--work-limit", 3 / 7)
    assert "taken from the cache" not in pipeloom(*alone, *cache).err
    assert "taken from the cache" in pipeloom(*alone, *cache).err
