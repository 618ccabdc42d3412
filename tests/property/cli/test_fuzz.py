"""A slice of ``python -m benchmarks.fuzz``, another one each day, and that its checks can fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fuzz import checked, today
from benchmarks.fuzz.cases import Case, random_case
from benchmarks.fuzz.checks import check
from benchmarks.fuzz.documents import sound
from pipeloom.cli import failures
from pipeloom.ir.formats.validation import Document

COUNT, PARTS = 1000, 2


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_read_is_told_in_readable_lines(
    part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, size = today(), COUNT // PARTS
    with capsys.disabled():
        sys.stderr.write(
            f"\npython -m benchmarks.fuzz --seed {seed} --first {part * size} --count {size}\n"
        )
    faults = [
        f"{case}: {line}"
        for case, outcome in checked(seed, part * size, size)
        for line in outcome.faults
    ]
    assert faults == []


def test_a_seed_makes_the_same_case_again(tmp_path: Path) -> None:
    first, again = (random_case(7, 3, tmp_path) for _ in range(2))
    assert first == again
    assert len({random_case(7, number, tmp_path).words for number in range(20)}) > 10


def test_every_key_that_is_declared_is_in_a_sound_file() -> None:
    declared = {key for model in kinds_of(Document) for key in model.model_fields}
    assert declared - set(keys_in(sound())) == {"step"}  # as older files call it


def kinds_of(model: type[Document]) -> Iterator[type[Document]]:
    for kind in model.__subclasses__():
        yield kind
        yield from kinds_of(kind)


def keys_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from keys_in(inner)


def test_lines_as_they_come_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "printable", str)
    monkeypatch.setattr(failures, "MOST_CHARACTERS", 10**6)
    path = tmp_path / "\x1b[31m.json"
    case = Case(0, 0, "profile", ("verify", f"{path}{'x' * 500}"), path)
    found = check(case).faults
    assert any(line.startswith("standard error has a raw '\\x1b'") for line in found)
    assert any(line.startswith("a line of ") for line in found)
