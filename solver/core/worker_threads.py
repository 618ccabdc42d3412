"""Worker threads: the parts of a portfolio run in parallel and share one incumbent.

Kernels and solvers release Python's global lock, so threads suffice to use several cores. The
caller's thread only waits. It is the only one that calls the listener, asks whether to stop and
receives Ctrl-C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import cache
from time import monotonic
from typing import TypeVar

from .incumbent import Incumbent
from .options import LEAST_WORKERS, cores

Result = TypeVar("Result")

MOST_WORKERS = 8
POLL = 0.05  # seconds between two checks of the clock
GRACE = 0.5  # seconds that work has to end after the time limit, before it is abandoned

Pieces = Iterator[None]
"""Work in pieces; it can be paused after each."""
Worker = Callable[[Incumbent], Pieces]


def workers_abreast(best: Incumbent | None = None) -> int:
    """The number of parallel workers: one per core and at least two; two if work is limited."""
    if best is not None and best.limited:
        return LEAST_WORKERS
    return max(LEAST_WORKERS, min(cores(), MOST_WORKERS))


def run_workers(best: Incumbent, workers: Sequence[Worker]) -> None:
    """Run the workers until the solve is over, or all of them have finished.

    An exception of a worker is raised here, once the others have stopped.
    """
    views = best.views(len(workers))
    work = [worker(view) for worker, view in zip(workers, views, strict=True)]
    try:
        with ThreadPoolExecutor(len(workers), "worker") as threads:
            try:
                for _ in best.marks(views):
                    pairs = zip(work, views, strict=True)
                    _await(
                        best, {threads.submit(run_pieces, pieces, view) for pieces, view in pairs}
                    )
            finally:
                best.stop()  # before leaving the pool, which waits for its threads
    finally:
        best.gather()  # also if a worker raised or the user interrupted


def side_by_side(best: Incumbent, workers: Sequence[Worker]) -> Pieces:
    """Run the workers in parallel, or only the first if one core is allowed, until all finish.

    Each continues where it was when this is resumed.
    """
    resumed: list[Worker] = [cache(worker) for worker in workers]
    while True:
        run_workers(best, resumed[:1] if best.one_worker else resumed)
        if not best.exhausted and not best.one_worker:
            return
        yield


def in_thread(work: Callable[[], Result]) -> Future[Result]:
    """Run ``work`` in a thread that Python does not wait for at exit."""
    threads = ThreadPoolExecutor(1, "solve")
    future = threads.submit(work)
    threads.shutdown(wait=False)
    return future


def has_ended(best: Incumbent, work: Future[Result]) -> bool:
    """Wait for ``work``. Returns False if it is still running :data:`GRACE` seconds after the end.

    The end is when the user asked to stop, or when time is up and a schedule was built. Some work
    cannot check the clock: compiling a kernel, or building an order of very many ops; on a busy
    machine even short work takes long.
    """
    leave = math.inf
    while not wait([work], POLL).done:
        if best.ended and leave == math.inf:
            leave = monotonic() + GRACE
        if monotonic() >= leave:
            return False
    best.over()  # notifies the listener
    return True


def run_pieces(pieces: Pieces, best: Incumbent) -> None:
    if not best.over():
        for _ in pieces:
            if best.over():
                return


def _await(best: Incumbent, running: set[Future[None]]) -> None:
    while running:
        done, running = wait(running, POLL, FIRST_EXCEPTION)
        for each in done:
            each.result()
        best.over()
