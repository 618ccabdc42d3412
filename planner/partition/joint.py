"""``optimize`` for a profile by layers, which also chooses the cut into stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from time import monotonic
from typing import Any

from pipeloom.ir.errors import InputError, UnsupportedError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.layers import LayerKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import StageProfile
from pipeloom.ir.model.schedule import Report, Schedule, gap_between
from pipeloom.ir.units import amount
from pipeloom.report.summaries import from_optimal
from pipeloom.report.text_table import Cell, table
from pipeloom.solver.core.options import Order
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.partition.candidate import CutCandidate
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.partition.cut_bounds import CutBounds
from pipeloom.solver.partition.cuts import Cutter
from pipeloom.solver.partition.search import Partitioned, best_partition
from pipeloom.solver.placement.search import TriedPlacement, placements

from ..explain.answer import Answer, NothingFits
from ..explain.candidates import beyond_bounds, candidates_of, candidates_table
from ..inputs.placement_spec import AUTO, BIDIRECTIONAL, PlacementSpec
from ..inputs.problem_setup import Terms, check_microbatches
from ..placement.choose import placement_facts
from ..solving.cache import about_cuts
from ..solving.search import CachedSearch


def plan_partition(
    profile: LayeredProfile, terms: Terms, search: CachedSearch, placement: PlacementSpec, way: Way
) -> Answer:
    """The best cut, placement and schedule of the profile's layers.

    An answer in the cache is used; a new one is cached unless the search was stopped. Raises
    NothingFits, and InputError if the layers cannot be cut for the placement.
    """
    begin, asked, microbatches = monotonic(), search.options, terms.microbatches
    posed = tuple(_placements(placement, profile, terms))
    check_microbatches(microbatches, max(len(each.table) for each in posed))
    question = about_cuts(profile, terms, posed, way, asked)
    known = search.known(question)
    if known is not None:
        return _answer(*known, search, stopped=False)
    found = best_partition(
        profile,
        microbatches,
        posed,
        _beginning(search),
        way=way,
        rules=terms.rules,
        budget=asked.budget,
        seed=asked.seed,
        should_stop=asked.should_stop,
        **terms.limits,
    )
    facts = _facts(found, way.value)
    schedule = _reported(found, monotonic() - begin, asked.seed)
    if schedule is None:
        raise _refusal(found, placement, terms.where, facts)
    search.keep(question, schedule, facts)
    return _answer(schedule, facts, search, stopped=search.stopped)


def other_bounds(profile: LayeredProfile, terms: Terms, given: PlacementSpec) -> dict[str, float]:
    """Lower bounds over all cuts, for each placement that would be tried except the ``given``
    one."""
    own = [placement.table for placement in _placements(given, profile, terms)]
    limit, bounds = profile.cluster.limit_from(terms.memory_limit), dict[str, float]()
    for placement in _placements(PlacementSpec.of(AUTO), profile, terms):
        cutter = Cutter(profile, len(placement.owners), terms.rules)
        if placement.table not in own and cutter.even() is not None:
            cuts = CutBounds(cutter, placement, terms.microbatches, limit, terms.objective)
            bounds[placement.name] = cuts.bound()
    return bounds


def _beginning(search: CachedSearch) -> Callable[[Problem, str, float, Order | None], Schedule]:
    """The optimizer for one of several cuts, with an initial order of ops and without a cache.

    Each search has its own seed: a repeated search with the same seed and order finds nothing new.
    """
    seeds = count(search.options.seed)

    def run(problem: Problem, name: str, share: float, start: Order | None) -> Schedule:
        own = replace(search.options.share(share), seed=next(seeds))
        return replace(search, options=own).run(problem, name, start=start)

    return run


def _answer(
    schedule: Schedule, facts: dict[str, Any], search: CachedSearch, *, stopped: bool
) -> Answer:
    candidates = candidates_of("placement", facts["placements"], facts["placement"])
    bound = next(one.lower_bound for one in candidates if one.reason is None) or 0.0
    cost, words = iteration_time(schedule), _words(schedule, facts)
    return Answer(schedule, search, cost, bound, candidates, stopped, {"partition": facts}, words)


def _refusal(
    found: Partitioned, placement: PlacementSpec, where: str, facts: dict[str, Any]
) -> Exception:
    """The error if no cut fits in memory, or if the layers cannot be cut for any placement."""
    least, lines = found.smallest, [f"{name}: {why}" for name, why in found.why_not.items()]
    if least is not None:
        wants = {"smallest": least.limit, "rank": least.rank, "device": least.device}
        return NothingFits("no cut fits", "\n".join(lines), {"partition": facts}, **wants)
    if placement.name != AUTO:
        return UnsupportedError(*(f"{where}: layers: {line}" for line in lines))
    return UnsupportedError(*lines)


def _reported(found: Partitioned, seconds: float, seed: int) -> Schedule | None:
    """The best schedule; its report has the time of the whole search, and its seed."""
    best = None if found.best is None else found.best.schedule
    if best is None or best.report is None:
        return best
    report: Report = replace(best.report, solve_seconds=seconds, seed=seed)
    return replace(best, report=report)


def _facts(found: Partitioned, way: str) -> dict[str, Any]:
    best = found.best
    cost = None if best is None else best.cost
    return {
        "way": way,
        "placement": None if best is None else best.problem.placement.name,
        "parts": [] if best is None else stages_of(best.problem),
        "lower_bound": None if best is None else found.bound,
        "gap": None if cost is None else gap_between(cost, found.bound),
        "cuts_seen": found.seen,
        "cuts_searched": [_entry(candidate) for candidate in found.searched],
        "placements": [_tried(tried, cost, found.searched) for tried in found.tried],
        "not_possible": found.why_not,
    }


def _tried(
    tried: TriedPlacement, best: float | None, searched: Sequence[CutCandidate]
) -> dict[str, Any]:
    """One placement as a JSON object, with the number of its cuts that were searched."""
    cuts = sum(one.problem.placement.name == tried.name for one in searched)
    return placement_facts(tried, best) | {"cuts": cuts}


def _placements(spec: PlacementSpec, profile: LayeredProfile, terms: Terms) -> Sequence[Placement]:
    """The requested placement, or all those that ``auto`` tries."""
    nothing = StageProfile(0.0, 0.0, 0.0, 0.0, 0.0)
    one_each = replace(profile.cluster, stages=(nothing,) * profile.ranks)
    if spec.name == AUTO:
        return [placement for _, placement in placements(one_each, terms.kinds)]
    if spec.name == BIDIRECTIONAL:
        raise InputError(
            f"placement: expected a profile by stages with {BIDIRECTIONAL}, got layers that are to "
            "be cut"
        )
    if spec.chunks is None:
        owners = spec.owners_on(profile.ranks)
        profile.cluster.check_stages(len(owners), terms.where)
        return [Placement.of_stages(owners, spec.name, profile.ranks)]
    return [spec.place(one_each, terms.where)[1]]


def stages_of(problem: Problem) -> list[dict[str, Any]]:
    """Each stage's rank, layers and modules."""
    return [
        {
            "stage": number,
            "rank": rank,
            "layers": [layer.name for layer in stage.layers],
            "modules": [module for layer in stage.layers for module in layer.modules],
        }
        for number, (rank, stage) in enumerate(
            zip(problem.placement.owners, problem.profile.stages, strict=True)
        )
    ]


def _entry(candidate: CutCandidate) -> dict[str, Any]:
    return {
        "placement": candidate.problem.placement.name,
        "starts": list(candidate.cut),
        "cost": candidate.cost,
        "lower_bound": candidate.bound,
    }


def _words(schedule: Schedule, facts: dict[str, Any]) -> str:
    """The stages, the placements if there are several, and the gap over all cuts."""
    tried, searched = facts["placements"], len(facts["cuts_searched"])
    which = "all cuts at these placements" if len(tried) > 1 else "all cuts"
    return "\n".join(
        [
            stages_table(schedule),
            *(["", candidates_table("placement", tried)] if len(tried) > 1 else []),
            f"over {which}: {from_optimal(facts['gap'])} "
            f"({facts['cuts_seen']} looked at, {searched} searched){beyond_bounds(schedule)}",
        ]
    )


def stages_table(schedule: Schedule) -> str:
    """A table of the stages: rank, time, memory and layers."""
    rows: list[list[Cell]] = [
        [
            str(number),
            str(rank),
            stage.t_f + stage.t_b + stage.t_w,
            amount(stage.m_b),
            "-" if stage.weight_bytes is None else amount(stage.weight_bytes),
            _names(stage),
        ]
        for number, (rank, stage) in enumerate(
            zip(schedule.problem.placement.owners, schedule.problem.profile.stages, strict=True)
        )
    ]
    return table(["stage", "rank", "a microbatch", "M_B", "weights", "layers"], rows)


def _names(stage: StageProfile) -> str:
    """The names of the layers; consecutive blocks are abbreviated to the first and the last."""
    layers, words = stage.layers, []
    block = [layer.kind is LayerKind.BLOCK for layer in layers]
    edges = [
        i
        for i in range(len(layers) + 1)
        if i in {0, len(layers)} or not (block[i - 1] and block[i])
    ]
    for first, end in pairwise(edges):
        run = layers[first:end]
        words.append(run[0].name if len(run) == 1 else f"{run[0].name} to {run[-1].name}")
    return ", ".join(words)
