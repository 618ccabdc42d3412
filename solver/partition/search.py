"""Cut, placement and schedule together: many cuts at a glance, few searched, one to the end.

1. Every placement has a bound on all its cuts (:mod:`.cut_bounds`), and first cuts: the one of the
   least bound, those that balance time and memory, and the even one.
2. From there cuts are looked at by turns in two orders: the next by its bound, and the neighbours
   of the best so far. A look takes the bounds of that cut and, where they allow it to win, a
   schedule built without search.
3. The best and the balanced one are searched for a moment, then a few, then one for the rest of the
   time; orders are tried on other cuts in between (:mod:`.refinement`). A cut that its bound proves
   no better is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.units import counted

from ..core.stopping import NEVER, Budget, FirstOf, StoppingCriterion
from ..core.tolerances import CLOSED
from ..placement.search import TriedPlacement
from .candidate import CutCandidate
from .candidate_pool import CandidatePool, Way
from .cut_bounds import CutBounds
from .cuts import Cutter, Rules
from .min_memory import MinMemory
from .refinement import CERTIFYING, LOOKING, CutSolver, Refinement


@dataclass(frozen=True, slots=True)
class Partitioned:
    """``best``: None where nothing fits; ``tried``: one a placement, the best first.

    No schedule of any cut with any of the placements costs less than ``bound``. ``searched``: the
    best first; ``seen``: how many cuts were looked at. ``smallest``: the memory that would do,
    where no cut fits; None too where the layers cannot be cut for any of the placements.
    """

    best: CutCandidate | None
    searched: tuple[CutCandidate, ...]
    bound: float
    seen: int
    tried: tuple[TriedPlacement, ...]
    smallest: MinMemory | None = None

    @property
    def why_not(self) -> dict[str, str]:
        return {each.name: each.why_not for each in self.tried if each.why_not is not None}


def best_partition(
    profile: LayeredProfile,
    microbatches: int,
    placements: Sequence[Placement],
    search: CutSolver,
    *,
    way: Way = Way.JOINT,
    rules: Rules | None = None,
    memory_limit: float | None = None,
    objective: Objective = Objective.PERIOD,
    budget: Budget | None = None,
    seed: int = 0,
    should_stop: StoppingCriterion = NEVER,
) -> Partitioned:
    """The best cut, placement and schedule within ``budget``.

    ``search`` is the optimizer, given shares of that. Activations keep the memory limit, and the
    part of ``device_memory`` that a rank's weights, gradients and optimizer state leave.
    """
    budget = budget or Budget()
    limit = profile.cluster.limit_from(memory_limit)
    pools, closed, tried = list[CandidatePool](), list[CandidatePool](), list[TriedPlacement]()
    opening = FirstOf(budget.share(LOOKING), should_stop)
    for placement in placements:
        cutter = Cutter(profile, len(placement.owners), rules or Rules())
        pool = CandidatePool(CutBounds(cutter, placement, microbatches, limit, objective), seed)
        if (reason := _no_cut(cutter)) is not None:
            tried.append(TriedPlacement(placement.name, None, why_not=reason))
        else:
            (pools if pool.open(way, opening) else closed).append(pool)
    if way is Way.JOINT:
        look(pools, budget, should_stop)
    seen = sum(pool.seen for pool in (*pools, *closed))
    nothing = [*closed, *(pool for pool in pools if not pool.candidates)]
    pools = [pool for pool in pools if pool.candidates]
    searched: list[CutCandidate] = []
    if pools:
        refinement = Refinement(pools, search, budget, should_stop)
        searched = refinement.joint() if way is Way.JOINT else refinement.each()
    best = min(searched, key=lambda candidate: candidate.cost, default=None)
    cost = math.inf if best is None else best.cost
    for pool in pools:
        bound = pool.certified(cost, budget.share(CERTIFYING / len(pools)))
        tried.append(
            TriedPlacement(pool.cut_bounds.placement.name, max(bound, pool.bound), pool.found)
        )
    for pool in nothing:
        known = None if pool.ruled_out else pool.bound
        tried.append(
            TriedPlacement(pool.cut_bounds.placement.name, known, why_not=str(pool.lacking))
        )
    lacking = [pool.lacking for pool in nothing if pool.lacking is not None]
    bound = min((each.bound for each in tried if each.bound is not None), default=math.inf)
    return Partitioned(
        best,
        tuple(searched),
        bound,
        seen,
        tuple(sorted(tried, key=lambda each: (each.cost, each.bound or math.inf))),
        smallest=min(lacking, key=lambda each: (each.device, each.limit), default=None),
    )


def look(pools: Sequence[CandidatePool], budget: Budget, should_stop: StoppingCriterion) -> None:
    """Looks at cuts of all placements by turns, until all are seen or a share of the time is up.

    Where nothing fits so far it goes on for nearly all of it.
    """
    open_ = list(pools)
    looking, longest = budget.share(LOOKING), budget.share(1.0 - LOOKING - CERTIFYING)
    too_long = FirstOf(longest, should_stop)
    while open_ and not should_stop():
        for pool in list(open_):
            bests = [each.best for each in pools]
            cost = min((one.quick_schedule.cost for one in bests if one), default=math.inf)
            cuts = [pool.by_bound(), pool.near_the_best()]
            if pool.bound >= cost * (1 - CLOSED) or cuts == [None, None]:
                open_.remove(pool)
                continue
            for cut in cuts:
                left = looking if any(each.candidates for each in pools) else longest
                if left():
                    return
                if cut is not None:
                    work = pool.look(cut, cost, too_long)
                    looking.work.spend(work)
                    longest.work.spend(work)


def _no_cut(cutter: Cutter) -> str | None:
    """Why there is no cut; None where there is one."""
    if cutter.even() is not None:
        return None
    pieces = cutter.number - sum(cutter.profile.tied)
    if pieces < cutter.stages:
        return (
            f"{counted(pieces, 'layer')} that may be cut apart, fewer than its "
            f"{counted(cutter.stages, 'stage')}"
        )
    most = "" if cutter.rules.most is None else f" and at most {cutter.rules.most}"
    return (
        f"no cut of {counted(cutter.number, 'layer')} into {counted(cutter.stages, 'stage')} has "
        f"at least {cutter.rules.least}{most} in each"
    )
