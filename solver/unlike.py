"""The portfolio for unlike microbatches, which differ in times or sizes.

The order in which microbatches enter the pipeline is then a decision, too.

::

    auto        families with several entry orders; then in parallel, with different seeds: a list
                scheduler whose priorities are searched, then in turn with it: patterns of the mean
                microbatch, filled with the real ones, and annealing
    heuristic   the same with one worker

Patterns come from the portfolio for equal microbatches (:mod:`.portfolio`).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pipeloom.ir.errors import InputError

from .construct.one_at_a_time import one_at_a_time
from .core.incumbent import Incumbent
from .core.methods import Method
from .core.options import cores
from .core.progress import FALLBACK
from .core.worker_threads import Pieces, Worker, side_by_side
from .families.applicable import build_families
from .portfolio import start
from .proofs import closed_form_bounds, interleave
from .search.list_search import ListTuner
from .search.local_search import Annealer
from .search.pattern_search import PatternSearch, offer_filled
from .search.rounds import improve

SOLVERS = ("auto", "heuristic")


def plan_unlike(best: Incumbent, seed: int, solver: str) -> Pieces:
    """The portfolio, in pieces. Raises InputError for a solver that needs equal microbatches."""
    if solver not in SOLVERS:
        raise InputError(
            f"solver: expected {' or '.join(SOLVERS)} where microbatches are unlike, got {solver!r}"
        )
    best.offer(one_at_a_time(best.problem), FALLBACK)
    closed_form_bounds(best)
    build_families(best)
    if best.order is not None:
        offer_filled(best, best.order, Method.PATTERN if best.built else FALLBACK)
    ListTuner(best.problem, np.random.default_rng(seed)).first(best)
    search = _search(best, seed, pattern=True)
    yield
    if solver == "heuristic":
        yield from search(best)
        return
    numbers = range(1, 2 if best.limited else cores())
    workers: list[Worker] = [search]
    workers += [partial(_elsewhere, seed=seed + n, number=n) for n in numbers]
    yield from side_by_side(best, workers)


def _elsewhere(best: Incumbent, seed: int, number: int) -> Pieces:
    """A further worker. Worker 1 also refutes cost targets.

    If a proof needs more work than is left until the next exchange of workers, worker 1 uses what
    is left for the search.
    """
    search = _search(best, seed, pattern=number % 2 == 0)(best)
    for _ in interleave(best, seed) if number == 1 else ():
        until = best.work.ops
        for _ in search:
            yield
            if best.work.ops > until:
                break
    yield from search


def _search(best: Incumbent, seed: int, *, pattern: bool) -> Worker:
    """All search methods, with one random generator.

    ``pattern``: patterns hold the memory of the largest microbatch, else that of the mean.
    """
    rng = np.random.default_rng((seed, 0 if pattern else 1))

    def mean(small: Incumbent) -> Pieces:
        yield from start(small, int(rng.integers(1 << 31))).pieces(small)

    tuner, patterns = ListTuner(best.problem, rng), PatternSearch(best, mean, largest=pattern)

    def search(view: Incumbent) -> Pieces:
        yield from tuner.pieces(view)
        yield from improve(view, [tuner, patterns, Annealer(best.problem, rng)])

    return search
