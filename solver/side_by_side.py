"""Lanes: parts of a portfolio, each in a thread of its own, that work on one incumbent.

Kernels and solvers let go of Python's lock, so that threads are enough to use several cores. The
caller's thread only waits: it alone calls the listener, asks whether to stop and hears Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from .incumbent import Incumbent

POLL = 0.05
"""Seconds between two looks at the clock."""

Pieces = Iterator[None]
"""Work in pieces: between two of them it may be left."""
Lane = Callable[[Incumbent], Pieces]


def side_by_side(best: Incumbent, lanes: Sequence[Lane]) -> None:
    """Runs the lanes until it is over, or all have come to their end.

    What one of them raises is raised here, once the others have stopped.
    """
    views = best.views(len(lanes))
    work = [lane(view) for lane, view in zip(lanes, views, strict=True)]
    try:
        with ThreadPoolExecutor(len(lanes), "lane") as threads:
            try:
                for _ in best.marks(views):
                    pairs = zip(work, views, strict=True)
                    _await(best, {threads.submit(in_turn, pieces, view) for pieces, view in pairs})
            finally:
                best.stop()  # before the threads are waited for
    finally:
        best.gather()  # where a lane raised or the user interrupts


def in_turn(pieces: Pieces, best: Incumbent) -> None:
    """Piece by piece until it is over."""
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
