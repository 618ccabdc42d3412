"""Worker processes that run solves: on this machine, or on the workers of a Dask cluster.

Both kinds are used through ``concurrent.futures.Executor``. If a worker of a cluster is lost, the
scheduler runs its task again; if one of this machine is lost, the run fails. Worker processes end
with the process that started them, however that process ends. A result depends only on its task, so
that with a work limit results are the same on every machine.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from concurrent.futures.process import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from ctypes import c_int
from functools import partial
from multiprocessing import get_context, parent_process
from socket import create_connection
from threading import Thread
from time import monotonic, sleep
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pipeloom import __version__
from pipeloom.ir.errors import InputError, PipeloomError, in_brief
from pipeloom.solver.core.options import LEAST_WORKERS, THREADS, cores
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion

from .progress import Finished, Listener, unheard

Task = TypeVar("Task")
Result = TypeVar("Result")
Stop = Callable[[], None]
"""A function that asks all workers to stop."""

POLL, CONNECT_SECONDS = 0.1, 5
GO_ON, STOP, LEAVE = range(3)
"""Values of the flag that worker processes share with their parent. At ``STOP``, a solve returns
its best result so far; at ``LEAVE``, its result is no longer needed and the process exits."""
_FLAG: list[Any] = []
"""In a worker process, the flag that it shares with its parent; empty in all other processes."""


class _NotBegunError(Exception):
    """An error: a worker process received a task, but was asked to stop before it had begun it."""


class LostWorkersError(PipeloomError):
    """An error: a worker process or the scheduler was lost."""

    exit_code = 1


def processes_here() -> int:
    """Return the number of worker processes that together use all cores of this machine, if each
    solve runs the minimum number of threads."""
    return max(1, cores() // LEAST_WORKERS)


class Workers(ExitStack):
    """Processes that run tasks: ``processes`` of them on this machine, or the workers of the Dask
    scheduler at the address ``scheduler``. ``tasks``: the number of tasks, if all are run by one
    call of :meth:`run`; there are no more processes, and each solve then uses more threads.

    A context manager: the processes begin with the first call of :meth:`run` that needs them, and
    end with the context: after they have finished their tasks or, if an exception leaves the
    context, immediately. Raises InputError if ``processes`` is below 1, and in :meth:`run` if the
    scheduler cannot be reached.
    """

    def __init__(
        self, processes: int = 1, scheduler: str | None = None, tasks: int | None = None
    ) -> None:
        super().__init__()
        if not isinstance(processes, int) or processes < 1:
            raise InputError(f"workers: expected a whole number from 1 on, got {processes!r}")
        self.processes = processes if tasks is None else max(1, min(processes, tasks))
        self.scheduler = scheduler
        self._begun: tuple[Executor, Stop] | None = None

    def is_parallel(self, tasks: int) -> bool:
        """Return whether this number of tasks is run in other processes; otherwise they are run one
        by one in this process."""
        return self.scheduler is not None or min(self.processes, tasks) > 1

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        tell: Listener = unheard,
        should_stop: StoppingCriterion = NEVER,
    ) -> Iterator[tuple[int, Result]]:
        """Yield the index in ``tasks`` and the result of each task, in order of completion.

        ``function``: returns the result of a task. It must be a module-level function, and may call
        :func:`stop_asked`. ``tell``: receives the number of finished tasks.
        ``should_stop``: when it returns true, no further task is begun; tasks that have
        begun are finished on this machine, and cancelled on a cluster. Raises the errors of
        ``function``, and LostWorkersError.
        """
        begin = monotonic()
        for done, found in enumerate(self._results(function, tasks, should_stop), 1):
            tell(Finished(done, len(tasks), monotonic() - begin))
            yield found

    def _results(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        should_stop: StoppingCriterion,
    ) -> Iterator[tuple[int, Result]]:
        if self.is_parallel(len(tasks)):
            yield from _completed(*self._executor(), function, tasks, should_stop)
            return
        for number, task in enumerate(tasks):
            if not should_stop():
                yield number, function(task)

    def _executor(self) -> tuple[Executor, Stop]:
        if self._begun is None:
            where = self.scheduler
            self._begun = self.enter_context(
                _processes(self.processes) if where is None else _cluster(where)
            )
        return self._begun


def in_order(results: Iterator[tuple[int, Result]]) -> Iterator[tuple[int, Result]]:
    """Yield pairs of index and result, received in any order, in ascending order of index.

    A pair is held back until all pairs with smaller indices have been yielded. If the pair of some
    index never arrives, those with larger indices are yielded at the end.
    """
    early: dict[int, Result] = {}
    following = 0
    for number, result in results:
        early[number] = result
        while following in early:
            yield following, early.pop(following)
            following += 1
    yield from sorted(early.items(), key=lambda item: item[0])


def stop_asked() -> bool:
    """Return, when called within a task, whether the task should end now and return its best result
    so far, because the caller has asked to stop or no longer needs the result."""
    return any(flag.value for flag in _FLAG) or _is_cancelled()


def _completed(
    executor: Executor,
    stop: Stop,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    should_stop: StoppingCriterion,
) -> Iterator[tuple[int, Result]]:
    call = partial(_called, __version__, function)
    numbers = {executor.submit(call, task): number for number, task in enumerate(tasks)}
    running, stopped = set(numbers), False
    while running:
        done, running = wait(running, POLL, FIRST_COMPLETED)
        for each in done:
            if not (stopped and _is_left(each)):
                yield numbers[each], _result(each)
        if should_stop() and not stopped:
            stopped = True
            stop()
            for each in running:
                each.cancel()


def _is_left(future: Future[Any]) -> bool:
    return future.cancelled() or isinstance(future.exception(), _NotBegunError | BrokenExecutor)


def _result(future: Future[Result]) -> Result:
    """Return the result of a finished task.

    Raises the error that the task raised, except that errors of Dask itself become LostWorkersError
    or InputError.
    """
    try:
        return future.result()
    except PipeloomError:
        raise
    except CancelledError:
        raise LostWorkersError(
            "scheduler: lost; expected it to answer until the last result"
        ) from None
    except BrokenExecutor:
        raise LostWorkersError(
            "workers: one was lost; expected processes that nobody ends, and memory for each "
            "(--workers 1 needs least)"
        ) from None
    except Exception as error:
        if type(error).__name__ == "KilledWorker":
            raise LostWorkersError(f"scheduler: its workers are lost: {error}") from None
        if isinstance(error, ImportError) or "deserializ" in str(error):
            cause = in_brief(error.__cause__ or error)
            raise InputError(
                f"scheduler: expected pipeloom {__version__}, and what calls it, to be importable "
                f"there and by its workers: {cause}"
            ) from None
        raise


def _called(version: str, function: Callable[[Task], Result], task: Task) -> Result:
    """Run a task in a worker process, and return its result.

    ``version``: the version of pipeloom in the process that submitted the task; raises InputError
    if the worker has another one.
    """
    if any(flag.value for flag in _FLAG):
        raise _NotBegunError
    if version != __version__:
        raise InputError(f"scheduler: expected workers with pipeloom {version}, got {__version__}")
    return function(task)


@contextmanager
def _processes(number: int) -> Iterator[tuple[Executor, Stop]]:
    context = get_context("spawn")  # a fork would copy locks that threads hold
    flag = context.RawValue(c_int, GO_ON)
    threads = max(LEAST_WORKERS, cores() // number)
    pool = ProcessPoolExecutor(number, context, _begin, (flag, threads))
    try:
        yield pool, partial(setattr, flag, "value", STOP)
    except BaseException:
        flag.value = LEAVE
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(flag: Any, threads: int) -> None:
    """Initialize a worker process, which ignores Ctrl-C because its parent handles it.

    ``flag``: the flag that the worker shares with its parent. ``threads``: the number of CPU cores
    that a solve may use, unless the environment sets another.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault(THREADS, str(threads))
    _FLAG.append(flag)
    Thread(target=_leave_with_parent, args=(flag,), daemon=True).start()


def _leave_with_parent(flag: Any) -> None:
    parent = parent_process()
    while parent is not None and parent.is_alive() and flag.value < LEAVE:
        sleep(POLL)
    os._exit(1)


@contextmanager
def _cluster(address: str) -> Iterator[tuple[Executor, Stop]]:
    try:
        _knock(address)
    except (OSError, ValueError) as error:
        raise InputError(
            "scheduler: expected the address of a Dask scheduler that listens, such as "
            f"tcp://host:8786, got {address!r}: {in_brief(error)}"
        ) from None
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "scheduler: needs dask.distributed, which is not installed: "
            "pip install 'pipeloom[cluster]'"
        ) from None
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"scheduler: expected a Dask scheduler at {address!r}: {in_brief(error)}"
        ) from None
    with client:
        yield client.get_executor(pure=False), lambda: None


def _knock(address: str) -> None:
    """Raise OSError or ValueError if no scheduler listens at ``address``.

    Dask's own attempt to connect takes much longer to fail.
    """
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme not in {"tcp", "tls"} or not parts.hostname or not parts.port:
        raise ValueError("it is not tcp://HOST:PORT or tls://HOST:PORT")
    with create_connection((parts.hostname, parts.port), CONNECT_SECONDS) as connection:
        if parts.scheme == "tcp" and not connection.recv(1):  # a Dask scheduler sends first
            raise ConnectionError("it hangs up")


def _is_cancelled() -> bool:
    """Return, when called within a task on a cluster, whether the client has cancelled the task or
    disconnected; outside of clusters, return False."""
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:  # this process is not a worker
        return False
    task = worker.state.tasks.get(worker.get_current_task())
    return task is None or task.state == "cancelled"
