"""The table of methods that improve a schedule: which problems each serves, how it is created."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.problem import Problem

from .construct.backward_tail import TailBuilder
from .construct.linear import Constructor
from .core.incumbent import Incumbent
from .core.kinds import even, linear, paired, remat, unlike, weights
from .core.linear_instance import LinearInstance
from .core.methods import Method
from .core.options import SolveOptions
from .core.worker_threads import MOST_WORKERS, Worker
from .families.applicable import streaming_families
from .remat import relations
from .remat.annealing import RematAnnealer
from .remat.list_tuner import remat_list_tuner
from .search.constructor_search import RoundTuner, Tried
from .search.list_search import ListTuner
from .search.local_search import Annealer, FillingAnnealer, PairAnnealer
from .search.periodic_search import repeats, search_periodic
from .search.related import RelatedSearch, Restarts
from .search.rounds import Once, Round
from .search.unrolling import SpliceSearch, fewer_microbatches, in_pieces, unroll
from .search.window_search import WindowSearch
from .weight_passing import WeightPassingSearch


@dataclass
class Context:
    """The solve, the number and the results of one worker, which the worker's methods share.

    ``best``: the incumbent. ``number``: the worker's number; worker 0 is the one that constructs
    schedules. ``alone``: a function that searches a related problem, given the incumbent of that
    problem. ``tried``: the cost and the parameters of each schedule that worker 0 has constructed;
    empty for other workers and for problems that are not linear.
    """

    best: Incumbent
    options: SolveOptions
    number: int
    alone: Worker
    tried: list[Tried] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problem = self.best.problem
        self.rng = np.random.default_rng((self.options.seed, self.number))

    @cached_property
    def constructor(self) -> Constructor:
        instance = LinearInstance.of(self.problem)
        assert instance is not None
        return Constructor(self.problem, instance)

    @cached_property
    def lists(self) -> ListTuner:
        return ListTuner(self.problem, self.rng)

    @cached_property
    def unrollers(self) -> list[RelatedSearch]:
        """One search for each smaller number of microbatches whose schedules can be extended.

        An empty list if the problem has too few microbatches for that.
        """
        take, numbers = partial(unroll, rng=self.rng), fewer_microbatches(self.problem)
        fewer = (replace(self.problem, microbatches=number) for number in numbers)
        return [RelatedSearch(self.best, small, self.alone, take) for small in fewer]

    @cached_property
    def streams(self) -> WeightPassingSearch:
        """The search for schedules that pass weights.

        It begins with schedules of families, unless schedules are compared by their steady step;
        then it builds no families.
        """
        families = iter(()) if self.options.by_step else streaming_families(self.problem)
        return WeightPassingSearch(self.best, families, self.options, self.rng)

    @cached_property
    def starts(self) -> relations.AnnealingStarts:
        """The collection of schedules from which annealing with remat can start."""
        return relations.AnnealingStarts(self.best, self.options.recompute_all)


class Row(NamedTuple):
    """A method in a table of methods; ``name`` is its name in reports.

    ``serves``: returns a true value for problems to which the method applies. ``begin``: creates
    the method for the context of a worker, as one or more parts that share the method's time.
    ``workers``: the numbers of the workers that run the method.
    """

    name: str
    serves: Callable[[Problem], object]
    begin: Callable[[Context], Iterable[Round]]
    workers: Container[int] = range(MOST_WORKERS)


class _OfProblem(Protocol):
    def __call__(self, problem: Problem, rng: np.random.Generator) -> Round: ...


def _plain(kind: _OfProblem) -> Callable[[Context], Iterable[Round]]:
    return lambda context: [kind(context.problem, context.rng)]


def _related(
    related: Callable[[Problem, bool], Iterable[relations.Relation]], share: float
) -> Callable[[Context], Iterable[RelatedSearch]]:
    """Return a function that creates searches of ``related`` problems, for :attr:`Row.begin`.

    ``related``: called with the problem and ``recompute_all``, returns the related problems.
    ``share``: the part of the work that the searches of all of them take together. Workers 0 and 1
    each search every second problem.
    """

    def begin(context: Context) -> Iterator[RelatedSearch]:
        found = list(related(context.problem, context.options.recompute_all))
        for problem, orders, method in found[context.number :: 2]:
            take = partial(context.starts.take, orders, method)
            with suppress(InfeasibleError):
                yield RelatedSearch(
                    context.best, problem, context.alone, take, 2 * share / len(found)
                )

    return begin


def _remat_lists(context: Context) -> Iterator[Round]:
    every = context.options.recompute_all
    tuner = None if every else remat_list_tuner(context.problem, context.rng)
    if tuner is not None and Costs.of(context.problem).durations[:2].any():
        yield relations.RematLists(tuner, context.starts)


def _remat_annealer(context: Context) -> Iterator[Round]:
    yield RematAnnealer(context.problem, context.rng, context.starts)


def _constructors(context: Context) -> Iterator[Round]:
    yield RoundTuner(context.constructor, context.tried, context.rng)


def _windows(context: Context) -> Iterator[Round]:
    yield WindowSearch(context.best, context.rng, free=not context.options.recompute_all)


def _cut_in_pieces(problem: Problem) -> bool:
    return in_pieces(problem) and not overlap_saves(problem)


def _annealed(problem: Problem) -> bool:
    return not (weights(problem) or remat(problem))


FIRST, BOTH = range(1), range(2)
RELATED = (
    Row("without-remat", remat, _related(relations.without_remat, 0.05), BOTH),
    Row(Method.WHOLE_STAGES, remat, _related(relations.with_whole_stages, 0.1), BOTH),
    Row(Method.REPAIR, remat, _related(relations.with_more_memory, 0.1), BOTH),
)
"""The methods that run once, before all others."""
METHODS = (
    Row(Method.STREAM, weights, lambda context: [context.streams], FIRST),
    Row(Method.LIST, remat, _remat_lists),
    Row(Method.ANNEAL, remat, _remat_annealer),
    Row(Method.LIST, unlike, lambda context: [context.lists]),
    Row(Method.PAIR, paired, _plain(PairAnnealer)),
    Row(Method.FILL, even, _plain(FillingAnnealer)),
    Row(Method.TAIL, even, _plain(TailBuilder)),
    Row(Method.ANNEAL, _annealed, _plain(Annealer)),
    Row(Method.ROUNDS, linear, _constructors, FIRST),
    Row(Method.LIST, linear, lambda context: [context.lists], FIRST),
    Row(Method.PERIODIC, repeats, lambda context: [Once(search_periodic(context.best))], FIRST),
    Row(Method.LIST, even, lambda context: [context.lists]),
    Row(Method.SPLICE, _cut_in_pieces, _plain(SpliceSearch)),
    Row("restart", even, lambda context: [Restarts(context.best, context.rng)]),
    Row(Method.UNROLL, fewer_microbatches, lambda context: context.unrollers),
    Row(Method.WINDOW, lambda problem: not weights(problem), _windows),
)
"""The methods that run in turn.

A row whose name is not a :class:`.core.methods.Method`, such as ``restart``, runs several methods;
reports name the method of these that found the order.
"""
