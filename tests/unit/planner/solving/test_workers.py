"""Tasks spread over processes: the same results, whoever is lost, and no process left behind."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest

from pipeloom import InputError
from pipeloom.planner import Event, LostWorkersError, Note, Workers, stop_asked
from tests.support.interrupted import Started
from tests.support.tasks import killed, killed_once, stopped

TWO = Workers(2)
TASKS = [0, 1, 2, 3]


def nobody_is_left() -> bool:
    return not multiprocessing.active_children()


def test_a_killed_worker_costs_time_alone(tmp_path: Path) -> None:
    told: list[Event] = []
    tasks = [(number, tmp_path / "mark") for number in TASKS]
    found = dict(TWO.run(killed_once, tasks, tell=told.append))
    assert (tmp_path / "mark").exists()
    assert found == dict(Workers(1).run(lambda task: task * task, TASKS))
    assert any("begun again" in event.text for event in told if isinstance(event, Note))
    done = [str(event)[:6] for event in told if not isinstance(event, Note)]
    assert done == [f"{number} of 4" for number in (1, 2, 3, 4)]
    with pytest.raises(LostWorkersError, match="lost 3 times in a row") as error:
        list(TWO.run(killed, [1, 2]))
    assert error.value.exit_code == 1
    assert nobody_is_left()


def test_what_runs_is_asked_to_stop_and_the_rest_is_not_begun() -> None:
    found: dict[int, str] = {}
    for number, words in TWO.run(stopped, range(20), should_stop=lambda: bool(found)):
        found[number] = words
    assert found[0] == "0 done"
    assert set(found) < set(range(20))
    assert all(words.endswith("stopped") for number, words in found.items() if number)
    assert not stop_asked()
    assert nobody_is_left()


def test_who_leaves_takes_the_processes_along() -> None:
    def first_then_interrupted() -> None:
        for _ in TWO.run(stopped, range(3)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first_then_interrupted()
    assert nobody_is_left()


def test_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    words = ["sweep", "examples/profiles/zb-6.2b.json", "-m", 24, "--memory-limits", "5,6,7,8"]
    words += ["--time-limit", 100, "--workers", 2, "-o", tmp_path / "sweep"]
    run = Started(words, tmp_path / "run")
    run.until(lambda found: len(found) > 3)
    assert run.process.poll() is None
    assert run.ended(signal.SIGKILL)[0] == -signal.SIGKILL
    assert run.running() == {}


@pytest.mark.parametrize(
    "address",
    ["", "nonsense", "foo://x:1", "tcp://127.0.0.1:1", "tcp://127.0.0.1:99999", "tcp://[:8786"],
)
def test_a_wrong_address_is_told_at_once(address: str) -> None:
    with pytest.raises(InputError, match=r"^scheduler: expected the address of a Dask scheduler"):
        list(Workers(scheduler=address).run(killed, TASKS))
