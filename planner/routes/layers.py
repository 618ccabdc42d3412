"""The route for profiles by layers: the best cut into stages, with its placement and schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from time import monotonic
from typing import Any

from pipeloom.ir.errors import InputError, UnsupportedError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.layers import LayerKind
from pipeloom.ir.model.placement import Placement, PlacementKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import amount
from pipeloom.report.text_table import Cell, table
from pipeloom.solver.core.options import Order
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.partition.search import Partitioned, best_partition
from pipeloom.solver.placement.search import placements

from ..inputs.placement_spec import AUTO, BIDIRECTIONAL, PlacementSpec
from ..inputs.problem_setup import Terms, check_microbatches
from ..results.candidates import Candidate, candidates_table, over_all
from ..results.result import OPTIMIZER, NothingFits, Result
from ..solving.search import Search
from .placements import tried_placements


def best_of_cuts(
    profile: LayeredProfile, terms: Terms, search: Search, placement: PlacementSpec, way: Way
) -> Result:
    """Return the best schedule over cuts of the profile's layers and over placements.

    ``placement``: the requested placement, or ``auto`` for all of them. ``way``: whether the cut is
    chosen together with the schedule or before it. Raises NothingFits if no cut fits in memory, and
    InputError if the layers cannot be cut for the placement.
    """
    begin, asked, microbatches = monotonic(), search.options, terms.microbatches
    posed = tuple(_placements(placement, profile, terms))
    check_microbatches(microbatches, max(len(each.table) for each in posed))
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
    best = None if found.best is None else found.best.schedule
    facts = _facts(found, way.value, best)
    candidates = tried_placements(
        found.tried, best, [each.problem.placement.name for each in found.searched]
    )
    if placement.name == AUTO and PlacementKind.BIDIRECTIONAL in terms.kinds:
        candidates += (Candidate(BIDIRECTIONAL, None, None, "not supported for layers"),)
    if best is None:
        raise _refusal(found, placement, terms.where, candidates, facts)
    report = replace(best.known_report, solve_seconds=monotonic() - begin, seed=asked.seed)
    own = next(one.lower_bound for one in candidates if one.reason is None)
    return Result(
        OPTIMIZER,
        replace(best, report=report),
        lower_bound=own or 0.0,
        bound="all cuts",
        candidates=candidates,
        facts=facts,
        words=_words(best, candidates, found),
        stopped=search.stopped,
    )


def _beginning(search: Search) -> Callable[[Problem, str, float, Order | None], Schedule]:
    """Return a function that runs the optimizer for one cut.

    Its arguments are the cut's problem, its name, its share of the time or work, and an initial
    order of ops or None. Each call uses a different seed, because a second search with the same
    seed and order would find nothing new.
    """
    seeds = count(search.options.seed)

    def run(problem: Problem, name: str, share: float, start: Order | None) -> Schedule:
        own = replace(search.options.share(share), seed=next(seeds))
        return replace(search, options=own).run(problem, name, start=start)

    return run


def _refusal(
    found: Partitioned,
    placement: PlacementSpec,
    where: str,
    candidates: tuple[Candidate, ...],
    facts: dict[str, Any],
) -> Exception:
    """Return the error for a search without a result.

    It is NothingFits if no cut fits in memory, or else UnsupportedError with the reason, for each
    placement, why the layers cannot be cut for it. ``where``: the profile's name in messages.
    ``candidates``, ``facts``: what NothingFits reports in addition, for the table of placements and
    for JSON output.
    """
    least, lines = found.smallest, [f"{name}: {why}" for name, why in found.why_not.items()]
    if least is not None:
        wants = {"smallest": least.limit, "rank": least.rank, "device": least.device}
        return NothingFits("no cut fits", "\n".join(lines), candidates, facts=facts, **wants)
    if placement.name != AUTO:
        return UnsupportedError(*(f"{where}: layers: {line}" for line in lines))
    return UnsupportedError(*lines)


def _facts(found: Partitioned, way: str, best: Schedule | None) -> dict[str, Any]:
    parts = [] if best is None else stages_of(best.problem)
    return {"partition": {"way": way, "parts": parts, "cuts_seen": found.seen}}


def _placements(spec: PlacementSpec, profile: LayeredProfile, terms: Terms) -> Sequence[Placement]:
    """Return a list of the placements to try: the requested one, or all that ``auto`` tries.

    Raises InputError if the requested placement is impossible.
    """
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
    """Return a JSON object for each stage: its number, its rank, and the names of its layers and
    modules."""
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


def _words(best: Schedule, candidates: Sequence[Candidate], found: Partitioned) -> str:
    """Return the text that is printed below a result: the table of stages, the table of placements
    if there are several, and the gap over all cuts."""
    several = len(candidates) > 1
    parts = [stages_table(best)]
    parts += ["", candidates_table("placement", candidates)] if several else []
    which = "all cuts at these placements" if several else "all cuts"
    seen = f" ({found.seen} looked at, {len(found.searched)} searched)"
    return "\n".join([*parts, over_all(which, best, found.bound, seen)])


def stages_table(schedule: Schedule) -> str:
    """Return a table of the stages: rank, time per microbatch, memory and layers."""
    rows: list[list[Cell]] = []
    owners, stages = schedule.problem.placement.owners, schedule.problem.profile.stages
    for number, (rank, stage) in enumerate(zip(owners, stages, strict=True)):
        weights = "-" if stage.weight_bytes is None else amount(stage.weight_bytes)
        time = stage.t_f + stage.t_b + stage.t_w
        rows.append([str(number), str(rank), time, amount(stage.m_b), weights, _names(stage)])
    return table(["stage", "rank", "a microbatch", "M_B", "weights", "layers"], rows)


def _names(stage: StageProfile) -> str:
    """Return the names of a stage's layers, separated by commas. Consecutive blocks are given as
    ``first to last``."""
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
