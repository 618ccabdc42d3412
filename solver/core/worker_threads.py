"""Workers: pieces of work that run in parallel and share one incumbent.

Kernels and solvers release Python's global lock, so threads suffice to use several cores. The
caller's thread only waits. It is the only one that calls the listener, asks whether to stop and
receives Ctrl-C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from time import monotonic
from typing import TypeVar

from .incumbent import Incumbent
from .options import LEAST_WORKERS, cores
from .stopping import POLL, WorkLimit

Result = TypeVar("Result")

MOST_WORKERS = 8
GRACE = 0.5  # seconds after the time limit, after which running work is abandoned
MARKS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # shares of the work limit after which the next worker runs

Pieces = Iterator[None]
"""An iterator that runs one piece of a computation before it yields each item (None).

The computation is paused until the next item is requested.
"""
Worker = Callable[[Incumbent], Pieces]


def workers_abreast(best: Incumbent) -> int:
    """The number of workers of a solve: 2 with a work limit, else one per core, within 2 to 8."""
    return LEAST_WORKERS if best.limited else max(LEAST_WORKERS, min(cores(), MOST_WORKERS))


def side_by_side(best: Incumbent, workers: Sequence[Pieces]) -> Pieces:
    """Run each of ``workers`` in a thread until the solve is over or all have finished.

    With a work limit they run in turn instead, so that nothing depends on the clock. When time is
    up or the user asks to stop, the workers are paused and the generator yields; when it is
    resumed, each worker continues where it was. An exception in a worker is raised here after the
    other workers have stopped.
    """
    if best.limited:
        _in_turn(best, workers)
        return
    while True:
        with ThreadPoolExecutor(len(workers), "worker") as threads:
            try:
                for done in as_completed(
                    [threads.submit(run_pieces, worker, best) for worker in workers]
                ):
                    done.result()
            finally:
                best.stop()  # before leaving the pool, which waits for its threads
        if not best.exhausted:
            return
        yield


def _in_turn(best: Incumbent, workers: Sequence[Pieces]) -> None:
    """Run the workers one after the other, each until it has used a share of its work limit.

    This is repeated for each share in :data:`MARKS`, so that each worker can use its whole limit in
    the end. In each repetition, all workers begin with the same schedule and improve it separately;
    the next repetition begins with the best of their schedules.
    """
    total, limits = best.work.ops, [WorkLimit(used=best.work.used) for _ in workers]
    for share in MARKS:
        begun, found = best.state, []
        for worker, limit in zip(workers, limits, strict=True):
            best.state, best.work, limit.ops = begun, limit, share * total
            run_pieces(worker, best)
            found.append(best.state)
        best.state = min(found, key=lambda state: state.cost)


def run_pieces(pieces: Pieces, best: Incumbent) -> None:
    """Run ``pieces`` one by one until all have run or the solve is over."""
    if not best.over():
        for _ in pieces:
            if best.over():
                return


def in_thread(work: Callable[[], Result]) -> Future[Result]:
    """Call ``work`` in a new thread, and return the future of its result."""
    threads = ThreadPoolExecutor(1, "solve")
    future = threads.submit(work)
    threads.shutdown(wait=False)
    return future


def has_ended(best: Incumbent, work: Future[Result]) -> bool:
    """Wait for the call ``work``; return True when it has ended, or False if it is abandoned.

    It is abandoned :data:`GRACE` seconds after ``best.ended`` becomes true (the user asked to stop,
    or time is up and a schedule was built). Some calls cannot check the clock, such as compiling a
    kernel or building an order of very many ops; on a busy machine even short ones take long.
    """
    leave = math.inf
    while not wait([work], POLL).done:
        if best.ended and leave == math.inf:
            leave = monotonic() + GRACE
        if monotonic() >= leave:
            return False
    best.over()  # notifies the listener
    return True
