"""Worker threads: parts of a portfolio, each in a thread of its own, that work on one incumbent.

Kernels and solvers let go of Python's lock, so that threads are enough to use several cores. The
caller's thread only waits: it alone calls the listener, asks whether to stop and hears Ctrl-C.
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
POLL = 0.05  # seconds between two looks at the clock
GRACE = 0.5  # seconds that work has to end once time is up, before it is left alone

Pieces = Iterator[None]
"""Work in pieces: between two of them it may be left."""
Worker = Callable[[Incumbent], Pieces]


def workers_abreast(best: Incumbent | None = None) -> int:
    """The number of workers side by side: one a core, two at least, and where work is limited."""
    if best is not None and best.limited:
        return LEAST_WORKERS
    return max(LEAST_WORKERS, min(cores(), MOST_WORKERS))


def run_workers(best: Incumbent, workers: Sequence[Worker]) -> None:
    """Runs the workers until it is over, or all have come to their end.

    What one of them raises is raised here, once the others have stopped.
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
                best.stop()  # before the threads are waited for
    finally:
        best.gather()  # where a worker raised or the user interrupts


def side_by_side(best: Incumbent, workers: Sequence[Worker]) -> Pieces:
    """The workers side by side, or the first alone on one core, until all have come to their end;
    each goes on where it was when this is taken up again."""
    resumed: list[Worker] = [cache(worker) for worker in workers]
    while True:
        run_workers(best, resumed[:1] if best.one_worker else resumed)
        if not best.exhausted and not best.one_worker:
            return
        yield


def in_thread(work: Callable[[], Result]) -> Future[Result]:
    """``work`` in a thread of its own, which nobody has to wait for before Python ends."""
    threads = ThreadPoolExecutor(1, "solve")
    future = threads.submit(work)
    threads.shutdown(wait=False)
    return future


def has_ended(best: Incumbent, work: Future[Result]) -> bool:
    """Waits for ``work``; False where it goes on though it was to stop, or time is up and it has
    built a schedule.

    Not all of it looks at the clock: a kernel is compiled at its first use, an order of very many
    ops is built, and where other processes have the cores a moment's work takes long.
    """
    leave = math.inf
    while not wait([work], POLL).done:
        if best.ended and leave == math.inf:
            leave = monotonic() + GRACE
        if monotonic() >= leave:
            return False
    best.over()  # tells the listener what is new
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
