"""Tasks in several processes: equal results, lost workers, and no process left behind."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipeloom import InfeasibleError, InputError, sweep
from pipeloom.planner import Event, LostWorkersError, Workers, stop_asked
from tests.support.command_line import profile_document, untimed
from tests.support.processes import ENVIRONMENT, until
from tests.support.tasks import killed, stopped

TASKS = [0, 1, 2, 3]


def nobody_is_left() -> bool:
    return not multiprocessing.active_children()


def test_a_killed_worker_ends_the_run() -> None:
    with (
        pytest.raises(LostWorkersError, match=r"^workers: one was lost;") as error,
        Workers(2) as two,
    ):
        list(two.run(killed, [1, 2]))
    assert error.value.exit_code == 1
    assert nobody_is_left()


def test_processes_stay_from_one_run_to_the_next() -> None:
    told: list[Event] = []
    with Workers(2) as two:
        assert dict(two.run(abs, [-1, 2, -3], tell=told.append)) == {0: 1, 1: 2, 2: 3}
        first = {each.pid for each in multiprocessing.active_children()}
        assert dict(two.run(abs, TASKS)) == dict(enumerate(TASKS))
        assert {each.pid for each in multiprocessing.active_children()} == first
    assert [str(event)[:6] for event in told] == [f"{number} of 3" for number in (1, 2, 3)]
    assert nobody_is_left()


@pytest.mark.parametrize(("tasks", "processes"), [(None, 3), (2, 2)])
def test_a_small_first_batch_does_not_limit_later_ones(tasks: int | None, processes: int) -> None:
    with Workers(3, tasks=tasks) as workers:
        list(workers.run(abs, TASKS[:2]))
        list(workers.run(abs, range(20)))
        assert len(multiprocessing.active_children()) == processes


def test_what_runs_is_asked_to_stop_and_the_rest_is_not_begun() -> None:
    found: dict[int, str] = {}
    with Workers(2) as two:
        for number, words in two.run(stopped, range(20), should_stop=lambda: bool(found)):
            found[number] = words
    assert found[0] == "0 done"
    assert set(found) < set(range(20))
    assert all(words.endswith("stopped") for number, words in found.items() if number)
    assert not stop_asked()
    assert nobody_is_left()


def test_who_leaves_takes_the_processes_along() -> None:
    def first_then_interrupted() -> None:
        with Workers(2) as two:
            for _ in two.run(stopped, range(3)):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first_then_interrupted()
    assert nobody_is_left()


SCRIPT = """
import multiprocessing
import socket
from pipeloom.planner import Workers
from tests.support.tasks import stopped
if __name__ == "__main__":
    with Workers(2) as two:
      for _ in two.run(stopped, range(3)):
        print(*[each.pid for each in multiprocessing.active_children()], flush=True)
"""


def test_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as parent:
        assert parent.stdout is not None
        children = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    until(lambda: not any(map(runs, children)), 30)


def runs(process: int) -> bool:
    """Whether this process exists and has not ended."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.parametrize(
    "address",
    ["", "nonsense", "foo://x:1", "tcp://127.0.0.1:1", "tcp://127.0.0.1:99999", "tcp://[:8786"],
)
def test_a_wrong_address_is_told_at_once(address: str) -> None:
    with pytest.raises(InputError, match=r"^scheduler: expected the address of a Dask scheduler"):
        list(Workers(scheduler=address).run(killed, TASKS))


def submit(call: Callable[[Any], Any], task: Any) -> Future[Any]:
    """Submit a task like a cluster's executor: done at once, or lost if there is none."""
    future = Future[Any]()
    if task is None:
        future.cancel()
        future.set_running_or_notify_cancel()
        return future
    try:
        future.set_result(call(task))
    except Exception as error:
        future.set_exception(error)
    return future


@pytest.fixture
def dask(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A mock of the parts of Dask that workers use."""
    found = MagicMock()
    found.Client.return_value.get_executor.return_value.submit = submit
    monkeypatch.setitem(sys.modules, "distributed", found)
    return found


@pytest.fixture
def scheduler(dask: MagicMock) -> Iterator[str]:
    """An address with a listening socket, which may send nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tls://127.0.0.1:{server.getsockname()[1]}"


def test_a_sweep_over_a_cluster_is_that_of_one_process(scheduler: str) -> None:
    asked: dict[str, Any] = {"work_limit": 0.2, "seed": 3, "placement": "linear"}
    one, spread = (
        sweep(profile_document(), 4, [1.5, 2.0, 3.0], **asked, **where)
        for where in ({}, {"scheduler": scheduler})
    )
    assert untimed(one.to_dict()) == untimed(spread.to_dict())
    assert one.picture() == spread.picture()


def fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("task", "kind", "line"),
    [
        (ImportError("x"), InputError, r"scheduler: expected pipeloom .* to be importable .*: x$"),
        (RuntimeError("Error during deserialization"), InputError, "importable .*: Error during"),
        (type("KilledWorker", (Exception,), {})(), LostWorkersError, "its workers are lost: "),
        (InfeasibleError("no"), InfeasibleError, "^no$"),
        (None, LostWorkersError, "^scheduler: lost; expected it to answer"),
    ],
)
def test_what_a_cluster_cannot_do_is_a_line(
    scheduler: str, task: Exception | None, kind: type[Exception], line: str
) -> None:
    with pytest.raises(kind, match=line), Workers(scheduler=scheduler) as away:
        list(away.run(fails, [task]))


def test_a_task_that_a_cluster_cancels_is_asked_to_stop(dask: MagicMock) -> None:
    of_worker = dask.get_worker.return_value.state.tasks.get
    for state in ("executing", "cancelled"):
        of_worker.return_value.state = state
        assert stop_asked() is (state == "cancelled")
    of_worker.return_value = None  # its client has disconnected
    assert stop_asked()
    dask.get_worker.side_effect = ValueError("this is no worker")
    assert not stop_asked()
