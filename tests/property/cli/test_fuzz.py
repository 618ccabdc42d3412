"""A slice of ``python -m tests.fuzz``, another one each day, and that its checks can fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeloom.cli import failures
from pipeloom.ir import errors
from pipeloom.ir.formats.lengths_document import LengthsDocument
from pipeloom.ir.formats.validation import Document
from tests.fuzz import checked, today
from tests.fuzz.cases import Case, _options, random_case
from tests.fuzz.checks import check
from tests.fuzz.damage import REMOVED_KEYS, damaged
from tests.fuzz.documents import sound

COUNT, PARTS = 1000, 2


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_read_is_told_in_readable_lines(
    part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, size = today(), COUNT // PARTS
    with capsys.disabled():
        sys.stderr.write(
            f"\npython -m tests.fuzz --seed {seed} --first {part * size} --count {size}\n"
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


def test_documents_are_crossed_with_others() -> None:
    profile, layered = sound()["profile"][0], sound()["layers"][0]
    found = [damaged(profile, Random(seed), [layered]) for seed in range(300)]
    assert any(b'"stages"' in data and b'"layers"' in data for data in found)
    assert any(data.count(b'"repeat"') > 0 for data in found)
    removed = [key.encode() for key in REMOVED_KEYS]
    assert not removed or any(key in data for key in removed for data in found)


def test_every_option_of_a_command_is_known_from_its_parser() -> None:
    names = {name for action in _options("optimize") for name in action.option_strings}
    assert {"-m", "--memory-limit", "--start", "--explain"} < names
    assert not names & {"-o", "--cache", "--certificate", "--time-limit"}


def test_every_key_that_is_declared_is_in_a_sound_file() -> None:
    read = [model for model in kinds_of(Document) if model is not LengthsDocument]
    declared = {key for model in read for key in model.model_fields}
    assert declared - set(keys_in(sound())) == {"step", "bound_name"}  # of older files


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
    monkeypatch.setattr(errors, "printable", str)
    monkeypatch.setattr(failures, "MOST_CHARACTERS", 10**6)
    path = tmp_path / "\x1b[31m.json"
    case = Case(0, 0, "profile", ("verify", f"{path}{'x' * 500}"), path)
    found = check(case).faults
    assert any(line.startswith("standard error has a raw '\\x1b'") for line in found)
    assert any(line.startswith("a line of ") for line in found)
