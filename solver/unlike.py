"""The portfolio where microbatches are unlike: the order in which they enter is a decision too.

::

    auto        families and entry orders, all orders where they are few; then side by side: a list
                scheduler by entry orders that are moved, patterns of the mean microbatch filled
                in, ops moved, microbatches exchanged
    heuristic   the same by one worker

Patterns come from the portfolio of microbatches that are alike (:mod:`.portfolio`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from pipeloom.ir.errors import InputError

from .construct.one_at_a_time import one_at_a_time
from .core.incumbent import Incumbent
from .core.options import cores
from .core.progress import FALLBACK
from .core.worker_threads import Pieces, Worker, run_workers
from .exact.enumeration import enumerate_orders
from .families.applicable import build_families
from .portfolio import Round, improve, start
from .proofs import closed_form_bounds
from .search.entry_orders import EntryOrderAnnealer, PatternSearch, offer_filled
from .search.local_search import Annealer, ListTuner

SOLVERS = ("auto", "heuristic")


def plan_unlike(best: Incumbent, seed: int, solver: str) -> Pieces:
    """The portfolio's pieces. Raises InputError for a solver that is for equal ones."""
    if solver not in SOLVERS:
        raise InputError(
            f"solver: expected {' or '.join(SOLVERS)} where microbatches are unlike, got {solver!r}"
        )
    best.offer(one_at_a_time(best.problem), FALLBACK)
    closed_form_bounds(best)
    build_families(best)
    if best.order is not None:
        offer_filled(best, best.order, "search")
    ListTuner(best.problem, np.random.default_rng(seed)).first(best)
    rounds = _rounds(best, seed, pattern=True)
    if solver == "auto":
        enumerate_orders(best)
    yield
    if solver == "heuristic":
        yield from improve(best, rounds)
        return
    numbers = range(1, 2 if best.limited else cores())
    workers: list[Worker] = [lambda view: improve(view, rounds)]
    workers += [partial(_elsewhere, seed=seed + n, pattern=n % 2 == 0) for n in numbers]
    resumed: list[Worker] = [cache(worker) for worker in workers]
    while True:
        run_workers(best, resumed[:1] if best.one_worker else resumed)
        if not best.exhausted and not best.one_worker:
            return
        yield


def _elsewhere(best: Incumbent, seed: int, pattern: bool) -> Pieces:
    yield from improve(best, _rounds(best, seed, pattern=pattern))


def _rounds(best: Incumbent, seed: int, *, pattern: bool) -> Sequence[Round]:
    """Methods by random numbers of their own; patterns hold the largest memory, or the mean's."""
    rng = np.random.default_rng((seed, 0 if pattern else 1))

    def search(small: Incumbent) -> Pieces:
        yield from start(small, int(rng.integers(1 << 31))).pieces(small)

    patterns = PatternSearch(best, search, largest=pattern)
    exchanges = EntryOrderAnnealer(best.problem, rng, patterns)
    return [ListTuner(best.problem, rng), patterns, exchanges, Annealer(best.problem, rng)]
