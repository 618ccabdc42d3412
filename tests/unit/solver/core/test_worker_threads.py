"""Worker threads that share an incumbent: who hears what, and how they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Status
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.bound import Bound
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.progress import Progress
from pipeloom.solver.core.worker_threads import run_workers
from pipeloom.solver.optimize import optimize
from pipeloom.solver.portfolio import start

PROBLEM = Problem.linear(Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 3, 3, 0.1), 6, 3.0)


def incumbent(**options: object) -> Incumbent:
    best = Incumbent(PROBLEM, lower_bound(PROBLEM), SolveOptions(time_limit=60.0, **options))  # type: ignore[arg-type]
    best.offer(one_at_a_time(PROBLEM), "one-at-a-time")
    return best


def waiting(best: Incumbent) -> Iterator[None]:
    while True:
        time.sleep(0.001)
        yield


def test_all_workers_end_where_bound_and_cost_meet() -> None:
    best = incumbent()

    def proving(view: Incumbent) -> Iterator[None]:
        yield
        view.raise_bound(Bound(best.cost, "test", ""))
        yield

    run_workers(best, [waiting, proving])
    assert best.closed


def test_an_error_in_one_worker_ends_the_others_and_is_raised() -> None:
    def failing(view: Incumbent) -> Iterator[None]:
        yield
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        run_workers(incumbent(), [waiting, failing])
    assert not any(thread.name.startswith("worker") for thread in threading.enumerate())


def test_listener_and_stop_are_called_in_the_callers_thread_alone() -> None:
    threads, seen = set(), []

    def listen(progress: Progress) -> None:
        threads.add(threading.get_ident())
        seen.append(progress.incumbent)

    def asked() -> bool:
        threads.add(threading.get_ident())
        return len(seen) > 2

    best = incumbent(progress=listen, should_stop=asked)

    def offering(view: Incumbent) -> Iterator[None]:
        start(view, 0)
        yield

    run_workers(best, [offering, waiting])
    assert threads == {threading.get_ident()}
    assert seen[-1] == best.cost


def test_an_interrupt_while_workers_run_keeps_the_best() -> None:
    stages = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(6))
    problem = Problem.linear(Profile(stages, 6, 0.5), 20, 3.0)

    def interrupt(progress: Progress) -> None:
        if any(thread.name.startswith("worker") for thread in threading.enumerate()):
            raise KeyboardInterrupt

    schedule = optimize(problem, progress=interrupt, time_limit=60.0)
    assert schedule.num_ops == 3 * 6 * 20
    assert schedule.known_report.status is Status.FEASIBLE
