"""Tasks spread over processes: the same results, whoever is lost, and no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

import pytest

from pipeloom import InputError
from pipeloom.planner.solving.progress import Finished
from pipeloom.planner.solving.workers import KeptWorkers, in_order
from tests.support.command_line import ENVIRONMENT
from tests.support.inner import Event, LostWorkersError, Note, Workers, stop_asked

TWO = Workers(2)
TASKS = [0, 1, 2, 3]
NO_SCHEDULER = r"^scheduler: expected the address of a Dask scheduler"


def squared(task: int) -> int:
    return task * task


def killed_once(task: tuple[int, Path]) -> int:
    """The first process that is at task 1 ends as if the machine had ended it."""
    number, mark = task
    if number == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    sleep(0.1)
    return number * number


def killed(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def stopped(task: int) -> str:
    """The first is done at once; others end when they are asked to."""
    while task and not stop_asked():
        sleep(0.01)
    return f"{task} stopped" if task else "0 done"


def runs(process: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


def nobody_is_left() -> bool:
    return not multiprocessing.active_children()


def test_a_killed_worker_costs_time_alone(tmp_path: Path) -> None:
    told: list[Event] = []
    tasks = [(number, tmp_path / "mark") for number in TASKS]
    found = dict(TWO.run(killed_once, tasks, tell=told.append))
    assert (tmp_path / "mark").exists()
    assert found == dict(Workers(1).run(squared, TASKS))
    assert any("begun again" in event.text for event in told if isinstance(event, Note))
    done = [event.done for event in told if isinstance(event, Finished)]
    assert done == [1, 2, 3, 4]
    assert nobody_is_left()


def test_workers_that_are_always_lost_are_given_up() -> None:
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
    assert nobody_is_left()


def test_who_leaves_takes_the_processes_along() -> None:
    def first_then_interrupted() -> None:
        for _ in TWO.run(stopped, range(3)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first_then_interrupted()
    assert nobody_is_left()


def of_process(_: int) -> int:
    return os.getpid()


def test_kept_workers_stay_from_run_to_run_until_one_is_lost(tmp_path: Path) -> None:
    with closing(KeptWorkers(2)) as kept:
        first = {pid for _, pid in kept.run(of_process, range(8))}
        again = {pid for _, pid in kept.run(of_process, range(8))}
        assert len(first | again) <= 2
        lost = dict(kept.run(killed_once, [(number, tmp_path / "mark") for number in TASKS]))
        assert lost == {0: 0, 1: 1, 2: 4, 3: 9}
        assert (first | again).isdisjoint(pid for _, pid in kept.run(of_process, TASKS))
    assert nobody_is_left()


SCRIPT = """
import multiprocessing
from pipeloom.planner.solving.workers import Workers
from tests.unit.planner.solving.test_workers import stopped
if __name__ == "__main__":
    for _ in Workers(2).run(stopped, range(3)):
        print(*[each.pid for each in multiprocessing.active_children()], flush=True)
"""


def test_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        children = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    until = monotonic() + 30
    while any(map(runs, children)):
        assert monotonic() < until, "a worker outlives the process that started it"
        sleep(0.05)


def test_one_process_is_this_one() -> None:
    assert [result for _, result in Workers(1).run(lambda task: task + 1, [1, 2])] == [2, 3]


def test_results_come_in_order_and_those_after_a_gap_at_the_end() -> None:
    seen: list[int] = []

    def results() -> Iterator[tuple[int, str]]:
        for number in (1, 0, 5, 4, 2):
            seen.append(number)
            yield number, "abcdef"[number]

    ordered = in_order(results())
    assert next(ordered) == (0, "a")
    assert seen == [1, 0]
    assert list(ordered) == [(1, "b"), (2, "c"), (4, "e"), (5, "f")]


@pytest.mark.parametrize(
    "address",
    ["", "nonsense", "foo://x:1", "tcp://127.0.0.1:1", "tcp://127.0.0.1:99999", "tcp://[:8786"],
)
def test_a_wrong_address_is_told_at_once(address: str) -> None:
    with pytest.raises(InputError, match=NO_SCHEDULER):
        list(Workers(scheduler=address).run(squared, TASKS))
