"""The bounds of solves: how many at once, how long, how many are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

import pipeloom
from pipeloom import Result
from pipeloom.ir import InputError
from pipeloom.web import BusyError, Solve, Solves, server
from tests.support.processes import until
from tests.support.served import PROFILE


@pytest.fixture
def solves() -> Iterator[Solves]:
    found = Solves()
    yield found
    found.close()


def waiting(solve: Solve) -> None:
    until(solve.should_stop)


def break_down(solve: Solve) -> None:
    raise ZeroDivisionError("secret")


def ended(solve: Solve) -> dict[str, object]:
    until(lambda: not solve.is_running)
    return solve.after(0)[-1]


def test_two_run_at_once_and_a_stopped_one_makes_room(solves: Solves) -> None:
    first, _ = (solves.start(Solve(waiting, {})) for _ in range(2))
    with pytest.raises(BusyError, match="solves: expected at most 2 at once: stop one first"):
        solves.start(Solve(waiting, {}))
    first.stop()
    third = solves.start(Solve(waiting, {}))
    assert not first.is_running
    assert third.is_running


def test_a_solve_ends_at_its_time_limit(solves: Solves) -> None:
    assert ended(solves.start(Solve(waiting, {}, seconds=0.05)))["state"] == "Out of time"


def test_errors_of_the_job_are_told(solves: Solves) -> None:
    def refuse(solve: Solve) -> None:
        raise InputError("memory_limit: expected more")

    last = ended(solves.start(Solve(refuse, {})))
    fault = {"key": "memory_limit", "words": "expected more", "text": "memory_limit: expected more"}
    assert (last["state"], last["faults"]) == ("Failed", [fault])
    last = ended(solves.start(Solve(break_down, {})))
    assert [each["text"] for each in last["faults"]] == ["internal error: ZeroDivisionError"]


def test_internal_errors_are_logged_on_demand(
    solves: Solves, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPELOOM_TRACEBACK", "1")
    ended(solves.start(Solve(break_down, {})))
    assert "ZeroDivisionError: secret" in capsys.readouterr().err


def test_the_oldest_solves_are_dropped(solves: Solves) -> None:
    started = [solves.start(Solve(lambda _: None, {})) for _ in range(3)]
    for each in started:
        ended(each)
    for _ in range(12):
        ended(solves.start(Solve(lambda _: None, {})))
    with pytest.raises(KeyError):
        solves.get(started[0].name)


def test_solves_with_many_ops_are_dropped_first(
    solves: Solves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeloom.web.solves.MOST_OPS", 100)
    row = Result("1f1b", pipeloom.build("1f1b", PROFILE, 6))  # 48 ops
    started: list[Solve] = []
    for _ in range(4):
        started.append(solves.start(Solve(lambda solve: solve.rows.append(row), {})))
        ended(started[-1])
    with pytest.raises(KeyError):
        solves.get(started[0].name)
    assert solves.get(started[2].name)


@pytest.mark.parametrize(("left", "ends"), [(2**20, True), (2**19, False), (0, False)])
def test_a_client_that_reads_too_slowly_is_left(left: int, ends: bool) -> None:
    connection: Any = object.__new__(server.Patient)
    connection.loop, connection.transport, connection.cycle = Mock(), Mock(), Mock()
    connection.transport.get_write_buffer_size.return_value = left
    connection.transport.is_closing.return_value = False
    connection._check(2**20)
    assert connection.transport.abort.called is ends
    assert connection.loop.call_later.called is not ends


def test_events_are_bounded_and_numbered() -> None:
    solve = Solve(lambda _: None, {})
    for number in range(2000):
        solve.tell("note", text=str(number))
    kept = solve.after(0)
    assert len(kept) == 600
    assert [each["number"] for each in solve.after(1997)] == [1998, 1999, 2000]


def test_closing_stops_all(solves: Solves) -> None:
    running = [solves.start(Solve(waiting, {})) for _ in range(2)]
    solves.close()
    assert not any(each.is_running for each in running)
    assert not [t for t in threading.enumerate() if t.name.startswith("solve_") and t.is_alive()]
