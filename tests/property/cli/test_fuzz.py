"""A part of ``python -m tests.fuzz``, different every day; its checks can fail."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import checked
from tests.fuzz.cases import Case, random_case
from tests.fuzz.checks import check
from tests.fuzz.damage import REMOVED_KEYS, damaged
from tests.fuzz.documents import sound
from tests.support.recorded import today

COUNT, PARTS = 2000, 4


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_read_is_told_in_readable_lines(
    part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, size = today(), COUNT // PARTS
    words = f"--seed {seed} --first {part * size} --count {size}"
    with capsys.disabled():
        sys.stderr.write(f"\npython -m tests.fuzz {words}\n")
    outcomes = checked(seed, part * size, size)
    assert [f"{case}: {line}" for case, outcome in outcomes for line in outcome.faults] == []


def test_cases_are_made_again_by_their_seed_and_cross_documents(tmp_path: Path) -> None:
    first, again = (random_case(7, 3, tmp_path) for _ in range(2))
    assert first == again
    assert len({random_case(7, number, tmp_path).words for number in range(20)}) > 10
    profile, layered = sound()["profile"][0], sound()["layers"][0]
    found = [damaged(profile, Random(seed), [layered]) for seed in range(300)]
    assert any(b'"stages"' in data and b'"layers"' in data for data in found)
    assert any(data.count(b'"repeat"') > 0 for data in found)
    assert any(key.encode() in data for key in REMOVED_KEYS for data in found)


def test_lines_as_they_come_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(words: list[str]) -> int:
        sys.stderr.write(f"pipeloom: {words[1]}: no such file\n")
        return 2

    monkeypatch.setattr("tests.fuzz.checks.main", careless)
    path = tmp_path / "\x1b[31m.json"
    case = Case(0, 0, "profile", ("verify", f"{path}{'x' * 500}"), path)
    found = check(case).faults
    assert any(line.startswith("standard error has a raw '\\x1b'") for line in found)
    assert any(line.startswith("a line of ") for line in found)
