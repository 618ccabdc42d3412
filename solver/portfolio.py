"""The portfolios: which methods the optimizer runs, in which order, and which in parallel.

::

    auto        first schedules; then in parallel: construct and improve; prove; improve elsewhere
    heuristic   first schedules, construct, better bounds, improve
    exact       first schedules, construct, better bounds, an exact solver

*Construct* runs constructive heuristics with many parameter settings. *Improve* runs simulated
annealing, the constructors with parameters near the best ones, and CP-SAT on windows of the best
schedule, in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem

from .construct.backward_tail import TailBuilder
from .construct.linear import Constructor, settings
from .construct.one_at_a_time import one_at_a_time
from .construct.round_based import RoundParameters
from .construct.warm_start import warm_starts
from .core.incumbent import Incumbent
from .core.linear_instance import LinearInstance
from .core.methods import Method
from .core.options import LEAST_WORKERS
from .core.progress import FALLBACK
from .core.streams import as_many_each_way
from .core.tolerances import ROUNDING
from .core.worker_threads import Pieces, Worker, side_by_side, workers_abreast
from .families.applicable import build_families
from .proofs import RankBounds, closed_form_bounds, interleave, solve_exactly, tighten
from .search.constructor_search import RoundTuner, Tried, building
from .search.list_search import ListTuner
from .search.local_search import Annealer, FillingAnnealer
from .search.overlap_annealing import OverlapAnnealer
from .search.periodic_search import search_periodic
from .search.restarts import Restarts
from .search.rounds import Round, improve
from .search.unrolling import SpliceSearch, Unroller, fewer_microbatches
from .search.window_search import WindowSearch

EXACT_OPS = 400  # the most ops for which ``auto`` tries an exact solver
FIRST_OPS = 2_000_000  # total ops of the schedules that are built before anything runs in parallel
LEFT = 0.9  # share of the time or work left at which the first periodic search ends
MOVED = {FALLBACK, Method.START, Method.LIST, Method.ANNEAL, Method.FILL, Method.PAIR}
"""Methods other than families and repetition of a pattern.

If one of them found the best schedule, no family and no repeated pattern was as good.
"""


def automatically(best: Incumbent, seed: int) -> Pieces:
    """The ``auto`` portfolio: first schedules, then search and proofs in parallel."""
    search = start(best, seed)
    yield
    parts: list[Worker] = [search.pieces, partial(prove_and_search, seed=seed)]
    others = workers_abreast(best) - LEAST_WORKERS
    parts += [partial(search_elsewhere, seed=(seed, 2 + n)) for n in range(others)]
    yield from side_by_side(best, parts)


def heuristically(best: Incumbent, seed: int) -> Pieces:
    """The ``heuristic`` portfolio."""
    search = start(best, seed)
    yield
    yield from search.construct(best)
    yield from tighten(best)
    yield from search.improve(best)


def exactly(best: Incumbent, seed: int, solver: str) -> Pieces:
    """The portfolio of an exact solver: construct, improve the bound, then run the solver."""
    search = start(best, seed)
    yield
    yield from search.construct(best)
    yield from tighten(best)
    while not solve_exactly(best, solver, seed):
        yield


PORTFOLIOS: Mapping[str, Callable[[Incumbent, int], Pieces]] = {
    "auto": automatically,
    "heuristic": heuristically,
}


def start(best: Incumbent, seed: int) -> ConstructAndImprove:
    """Build first schedules and take closed-form bounds; returns the search to continue with."""
    linear = LinearInstance.of(best.problem)
    if best.order is None:
        best.offer(one_at_a_time(best.problem), FALLBACK)
    if linear is None:
        closed_form_bounds(best)
        build_families(best)
        for _ in search_periodic(best):
            if best.over() or best.method == Method.PERIODIC or best.share_left < LEFT:
                break
        if as_many_each_way(best.problem) and not best.over():
            ListTuner(best.problem, np.random.default_rng(seed)).first(best)
        return ConstructAndImprove(best, None, seed)
    for order in warm_starts(best.problem, linear):
        best.offer(order, Method.WARM_START)
    closed_form_bounds(best)
    search = ConstructAndImprove(best, linear, seed)
    for number, _ in enumerate(search.construct(best)):
        if best.over() or number * search.ops > FIRST_OPS:
            break
    return search


class ConstructAndImprove:
    """Constructs schedules, then improves them; one thread may continue where another stopped."""

    def __init__(self, best: Incumbent, linear: LinearInstance | None, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.ops = 3 * best.problem.stages * best.problem.microbatches
        self._annealer = Annealer(best.problem, rng)
        self._rng = rng
        self._tried: list[Tried] = []
        self._constructor = Constructor(best.problem, linear) if linear else None
        self._lists = ListTuner(best.problem, rng) if linear else None
        self._left: Iterator[RoundParameters] = iter(())
        if linear is not None:
            lags = linear.lags(best.problem.objective)
            self._left = settings(linear, best.bound.value, lags)

    def pieces(self, best: Incumbent) -> Pieces:
        yield from self.construct(best)
        yield from self.improve(best)

    def construct(self, best: Incumbent) -> Pieces:
        """Run the rounds with the parameters that have not been tried, then the list scheduler."""
        for parameters in self._left:
            best.work.spend(building(self.ops))
            assert self._constructor is not None
            rows = self._constructor.build(parameters)
            if rows is not None:
                cost = self._constructor.cost(rows)
                self._tried.append((cost, parameters))
                best.offer(rows, Method.ROUNDS, cost)
            yield
        if self._lists is not None and not best.over():
            self._lists.first(best)
            yield

    def improve(self, best: Incumbent) -> Pieces:
        """Run the local searches on orders and on constructors' parameters in turn.

        If ranks have several stages and there are many microbatches, problems with fewer
        microbatches are solved first, and their schedules extended.
        """
        if self._constructor is None:
            for fewer in fewer_microbatches(best.problem)[1:]:
                yield from unroller(best, fewer, self._rng).first(best)
        rounds: list[Round] = [*overlap_annealers(best, self._rng), self._annealer]
        if self._constructor is not None and self._lists is not None:
            rounds += [RoundTuner(self._constructor, self._tried, self._rng), self._lists]
            rounds += unrollers(best, self._rng)
        elif as_many_each_way(best.problem):
            yield from search_periodic(best)
            scheduler = ListTuner(best.problem, self._rng)
            if best.method in MOVED:
                yield from scheduler.pieces(best)
            filling = FillingAnnealer(best.problem, self._rng)
            ends = TailBuilder(best.problem, self._rng)
            if little_memory(best.problem):
                rounds = [*rounds[:-1], filling, ends, rounds[-1], scheduler]
            else:
                rounds = [*rounds, ends, scheduler, filling]
            rounds.append(Restarts(best, self._rng))
        splices, windows = SpliceSearch(best.problem, self._rng), WindowSearch(best, self._rng)
        yield from improve(best, [*rounds, splices, windows])


def search_elsewhere(
    best: Incumbent, seed: tuple[int, int], proofs: Sequence[Round] = ()
) -> Pieces:
    """Local search with its own random seed, on orders and on problems with fewer microbatches.

    ``proofs`` take turns with it.
    """
    rng = np.random.default_rng(seed)
    rounds: list[Round] = [
        *overlap_annealers(best, rng),
        *unrollers(best, rng),
        SpliceSearch(best.problem, rng),
        Annealer(best.problem, rng),
    ]
    if LinearInstance.of(best.problem) is None and as_many_each_way(best.problem):
        rounds += [FillingAnnealer(best.problem, rng), ListTuner(best.problem, rng)]
        rounds += [TailBuilder(best.problem, rng), Restarts(best, rng)]
    yield from improve(best, [*rounds, WindowSearch(best, rng), *proofs])


def overlap_annealers(best: Incumbent, rng: np.random.Generator) -> list[Round]:
    return [OverlapAnnealer(best.problem, rng)] if overlap_saves(best.problem) else []


def little_memory(problem: Problem) -> bool:
    """Whether some rank cannot hold P microbatches of its stages, as 1F1B and ZB-V do."""
    costs = Costs.of(problem)
    m_b = np.broadcast_to(costs.m_b.reshape(problem.stages, -1), costs.owner.shape)
    held = np.bincount(costs.owner.ravel(), m_b.ravel(), problem.ranks) / problem.microbatches
    return bool((costs.limit < problem.ranks * held * (1 - ROUNDING)).any())


def unrollers(best: Incumbent, rng: np.random.Generator) -> list[Unroller]:
    """Create the searches with fewer microbatches; none if there are few microbatches."""
    return [unroller(best, fewer, rng) for fewer in fewer_microbatches(best.problem)]


def unroller(best: Incumbent, fewer: int, rng: np.random.Generator) -> Unroller:
    def search(small: Incumbent) -> Pieces:
        yield from start(small, int(rng.integers(1 << 31))).pieces(small)

    return Unroller(best, fewer, search, rng)


def prove_and_search(best: Incumbent, seed: int) -> Pieces:
    """Improve the bound, with an exact solver if the problem is small, then search."""
    copies = best.problem.placement.kind is PlacementKind.BIDIRECTIONAL
    if not copies:  # their bound is slow: it takes turns with the search below
        yield from tighten(best)
    yield from interleave(best, seed)
    few = 3 * best.problem.stages * best.problem.microbatches <= EXACT_OPS
    passing = best.problem.placement.passing
    if few and passing is Passing.ACTIVATIONS and not overlap_saves(best.problem):
        while not solve_exactly(best, "cp-sat", seed):
            yield
    yield from search_elsewhere(best, (seed, 1), [RankBounds(best)] if copies else [])
