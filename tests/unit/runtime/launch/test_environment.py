"""What torchrun's variables, and the folder for temporary files, have to be."""

from __future__ import annotations

import resource
import tempfile

import pytest

from pipeloom.ir import InputError
from pipeloom.runtime.launch.environment import check_open_files, check_sockets, world

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def started(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> tuple[int, int] | None:
    for name, value in (TORCHRUN | changes).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    return world()


def test_a_rank_of_several_and_none_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(monkeypatch, RANK="1") == (1, 2)
    assert started(monkeypatch, RANK=None) is None


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"RANK": "x"}, "RANK: expected a whole number from 0 to 1, got 'x'"),
        ({"RANK": "2"}, "RANK: expected a whole number from 0 to 1, got '2'"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE: expected a whole number >= 1, got '-1'"),
        ({"MASTER_PORT": "y"}, "MASTER_PORT: expected a whole number from 0 to 65535, got 'y'"),
        ({"MASTER_PORT": None}, "MASTER_PORT: expected a whole number from 0 to 65535, got ''"),
        (
            {"MASTER_ADDR": None},
            "MASTER_ADDR: missing; expected it beside RANK, as torchrun sets it",
        ),
    ],
)
def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], line: str
) -> None:
    with pytest.raises(InputError) as raised:
        started(monkeypatch, **changes)
    assert raised.value.errors == (line,)


def test_a_folder_too_long_for_sockets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 90)
    with pytest.raises(InputError, match="TMPDIR: expected a path of at most 63 bytes"):
        check_sockets()
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 58)
    check_sockets()


def test_too_few_open_files_for_the_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    with pytest.raises(InputError, match="ulimit -n: expected at least 80 open files for 4 ranks"):
        check_open_files(4)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (80, 1024))
    check_open_files(4)
