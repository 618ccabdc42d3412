"""``optimize``: from a profile and memory limits to the best schedule, with a certified lower
bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pipeloom.ir.documents.struct import written
from pipeloom.ir.formats import dump_profile
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.partition.cuts import Rules

from .inputs.documents import read_schedule
from .inputs.placement_spec import AUTO, PlacementSpec
from .inputs.problem_setup import (
    ProfileSource,
    Terms,
    check_alike,
    layers_of,
    placement_of,
    stages_of,
)
from .inputs.words import slow_of
from .requests.exclusions import OPTIMIZE, refuse
from .requests.fields import takes
from .requests.search import OptimizeRequest
from .results.result import Result
from .routes.layers import best_of_cuts
from .routes.passing import best_of_schemes
from .routes.placements import best_of_placements, one_placement
from .routes.systems import SYSTEMS, System, best_1f1b
from .solving.cache import ResultCache, key_of
from .solving.progress import Note
from .solving.search import Search, memory_held

TIME_LIMIT = 20.0
"""Default time limit, in seconds."""
ASKED = (
    "passing", "partition", "min_layers", "max_layers", "recompute", "offload", "for_", "copies",
    "solver", "seed", "work_limit",
)  # fmt: skip
"""The arguments that enter the key of a cached result exactly as they were given."""


@takes(OptimizeRequest)
def optimize(request: OptimizeRequest) -> Result:
    """Find the best schedule for a profile, with a lower bound on the cost of all schedules.

    ``profile``: stages or layers, as an object, a JSON object or a file. The other arguments are
    the fields of :class:`.OptimizeRequest`, which are the options of the command.

    Raises InputError for invalid input (the message names options of the command: ``--max-layers``
    is ``max_layers`` here), and InfeasibleError if no schedule fits in memory.
    """
    question = Question.of(request)
    known = question.known()
    if known is None:
        question.keep(known := question.solve())
    question.tell_doubts(known)
    return known


@dataclass(frozen=True)
class Question:
    """A validated request for the best schedule, with defaults filled in.

    ``spec``: the placement, which may be ``auto``. ``given``: the profile, by layers if they are to
    be cut. ``terms``: the number of microbatches, limits and objective. ``system``: the training
    system that has to run the schedule, or None.
    """

    request: OptimizeRequest
    spec: PlacementSpec
    given: Profile | LayeredProfile
    terms: Terms
    system: System | None

    @classmethod
    def of(cls, request: OptimizeRequest) -> Question:
        """Return the question that a request poses. Raises InputError if the request or its profile
        is invalid."""
        if isinstance(request.profile, Problem):
            raise TypeError("profile: expected a profile, got a Problem: pipeloom.solve takes one")
        source, spec = ProfileSource.of(request.profile, request.progress), _placement(request)
        cut, slow = source.is_cut(**request.cuts), slow_of(request.slow) or None
        placed = spec.name != AUTO
        follows = {"placement": spec.name, "placed": placed, "cut": cut, "slow": slow}
        refuse(OPTIMIZE, **vars(request) | follows)
        system = None if request.for_ is None else SYSTEMS[request.for_].checked(spec)
        rules = Rules(request.min_layers or 1, request.max_layers)
        terms = Terms.of(request, source, slow=slow, rules=rules)
        _check_alike(request, source, cut)
        remat = ("none", "none") if system else (request.recompute, request.offload)
        number = terms.microbatches
        given = layers_of(source, *remat) if cut else stages_of(source, number, *remat)
        if system is not None:
            given = system.takes(given, spec, source.where)
            terms = replace(terms, kinds=system.kinds)
        return cls(request, spec, given, terms, system)

    @cached_property
    def search(self) -> Search:
        request, every = self.request, self.request.recompute == "all"
        more = {"solver": request.solver, "recompute_all": every, "memory": memory_held}
        return request.search(TIME_LIMIT, **more)

    @cached_property
    def cache(self) -> ResultCache | None:
        folder = self.request.cache
        return ResultCache(folder, self.search.progress) if folder else None

    @cached_property
    def key(self) -> str:
        """The name of the answer in the cache: a hash of everything that determines the answer."""
        given, request, terms = self.given, self.request, self.terms
        layers = given if isinstance(given, LayeredProfile) else None
        whole = given.as_stages if isinstance(given, LayeredProfile) else given
        start = None if request.start is None else read_schedule(request.start)[0].order
        asked = {name: getattr(request, name) for name in ASKED}
        return key_of(
            asked
            | {
                "profile": dump_profile(whole),
                "tied": None if layers is None else list(layers.tied),
                "microbatches": terms.microbatches,
                "memory_limit": written(whole.limit_from(terms.memory_limit)),
                "objective": terms.objective.value,
                "slow": sorted((terms.slow or {}).items()),
                "placement": [self.spec.name, self._owners],
                "time_limit": self.search.options.time_limit,
                "start": None if start is None else [row.tolist() for row in start],
            }
        )

    @property
    def _owners(self) -> Any:
        named = self.spec.chunks is not None or self.spec.name == AUTO
        return None if named else self.spec.owners_on(self.given.ranks)

    def known(self) -> Result | None:
        """Return the answer in the cache; None if it has none, or if no cache is used."""
        found = None if self.cache is None else self.cache.find(self.key)
        return None if found is None else Result.restored(*found)

    def keep(self, answer: Result) -> None:
        """Store an answer in the cache if one is used, unless the caller ended the search."""
        if self.cache is not None and not answer.stopped:
            self.cache.keep(self.key, answer.document, answer.kept)

    def solve(self) -> Result:
        """Search for the best schedule, by the route for this kind of request, and return the
        result.

        Raises InfeasibleError if nothing fits in memory, and InputError if the profile does not
        match the request.
        """
        given, terms, search, spec = self.given, self.terms, self.search, self.spec
        request, chosen = self.request, spec.name == AUTO
        if self.system is not None and not self.system.any_order:
            return best_1f1b(self.system, given, terms, search, spec)
        if isinstance(given, LayeredProfile):
            return best_of_cuts(given, terms, search, spec, Way(request.partition or "joint"))
        if request.passing == "auto":
            return best_of_schemes(given, terms, search, placed=chosen, copies=request.copies)
        if chosen and request.passing != "weights":
            one_copy = self.system is not None or request.recompute == "all"
            copies = 1 if one_copy else request.copies
            return best_of_placements(given, terms, search, copies)
        passing, start = request.passing, request.start
        return one_placement(given, terms, search, spec, passing=passing, start=start)

    def tell_doubts(self, answer: Result) -> None:
        """Report, as notes, that the schedule does not fit, or that its transfers of weights have
        no realistic cost."""
        if isinstance(self.given, LayeredProfile) or self.request.passing == "auto":
            return
        excess = answer.excess()
        for doubt in filter(None, [answer.uncosted, excess and f"does not fit: {excess}"]):
            self.search.progress(Note(f"note: {self.terms.where}: {doubt}"))


def _check_alike(request: OptimizeRequest, source: ProfileSource, cut: bool) -> None:
    """Raise InputError if values of the profile differ between microbatches, and the request has an
    option that does not support this: ``--for``, ``--copies 2``, or a cut chosen by the optimizer.

    ``cut``: whether the optimizer is to cut layers into stages.
    """
    for_, copies = request.for_ is not None, request.copies == 2
    asked = {f"--for {request.for_}": for_, "a cut chosen by optimize": cut, "--copies 2": copies}
    what = next((words for words, there in asked.items() if there), None)
    if what is not None:
        layers = source.layers.as_stages if cut else source.stages
        check_alike(layers, f"{source.where}: {'layers' if cut else 'stages'}", what)


def _placement(request: OptimizeRequest) -> PlacementSpec:
    """Return the requested placement: the one that was given; else, if weights are passed,
    ``linear``; else that of the schedule ``start``; else ``auto``."""
    if request.placement is not None:
        return PlacementSpec.of(request.placement)
    if request.passing == "weights":
        return PlacementSpec.of("linear")
    return PlacementSpec.of(AUTO) if request.start is None else placement_of(request.start)
