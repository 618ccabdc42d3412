"""Cut, placement and schedule together: many cuts at a glance, the best few searched, one to the
end.

1. Every placement has a bound on all its cuts (:mod:`.cut_bounds`), and first cuts: the one of the
   least bound, those that balance time and memory, and the even one.
2. From there cuts are looked at by turns in two orders: the next by its bound, and the neighbours
   of the best so far. A look takes the bounds of that cut and, where they allow it to win, a
   schedule built without search.
3. The best and the balanced one are searched for a moment, then a few, then one for the rest of the
   time; what was found is tried on other cuts in between (:mod:`.refinement`). What its bound
   proves no better is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.units import counted

from ..core.budget import Budget
from ..core.stopping import NEVER, FirstOf, StoppingCriterion
from ..core.tolerances import CLOSED
from ..placement.search import Tried
from .candidate import Option
from .candidate_pool import Desk, Way
from .cut_bounds import EveryCut
from .cuts import Cutter, Rules
from .min_memory import Smallest
from .refinement import CERTIFYING, LOOKING, Finals, Search


@dataclass(frozen=True, slots=True)
class Partitioned:
    """``best``: None where nothing fits; ``tried``: one a placement, the best first, and why
    nothing of it fits.

    No schedule of any cut with any of the placements costs less than ``bound``. ``searched``: the
    best first; ``seen``: how many cuts were looked at. ``smallest``: what memory would have to be,
    where no cut fits; None too where the layers cannot be cut for any of the placements.
    """

    best: Option | None
    searched: tuple[Option, ...]
    bound: float
    seen: int
    tried: tuple[Tried, ...]
    smallest: Smallest | None = None

    @property
    def why_not(self) -> dict[str, str]:
        return {each.name: each.why_not for each in self.tried if each.why_not is not None}


def best_partition(
    profile: LayeredProfile,
    microbatches: int,
    placements: Sequence[Placement],
    search: Search,
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

    ``search`` is the optimizer, given shares of that. Activations keep the
    memory limit, and what a rank's weights, gradients and optimizer state leave of
    ``device_memory``.
    """
    budget = budget or Budget()
    limit = profile.cluster.limit_from(memory_limit)
    desks, closed, tried = list[Desk](), list[Desk](), list[Tried]()
    opening = FirstOf(budget.share(LOOKING), should_stop)
    for placement in placements:
        cutter = Cutter(profile, len(placement.owners), rules or Rules())
        desk = Desk(EveryCut(cutter, placement, microbatches, limit, objective), seed)
        if (reason := _no_cut(cutter)) is not None:
            tried.append(Tried(placement.name, None, why_not=reason))
        else:
            (desks if desk.open(way, opening) else closed).append(desk)
    if way is Way.JOINT:
        look(desks, budget, should_stop)
    seen = sum(desk.seen for desk in (*desks, *closed))
    nothing = [*closed, *(desk for desk in desks if not desk.options)]
    desks = [desk for desk in desks if desk.options]
    searched: list[Option] = []
    if desks:
        finals = Finals(desks, search, budget, should_stop)
        searched = finals.joint() if way is Way.JOINT else finals.each()
    best = min(searched, key=lambda option: option.cost, default=None)
    cost = math.inf if best is None else best.cost
    for desk in desks:
        bound = desk.certified(cost, budget.share(CERTIFYING / len(desks)))
        tried.append(Tried(desk.every.placement.name, max(bound, desk.bound), desk.found))
    for desk in nothing:
        known = None if desk.ruled_out else desk.bound
        tried.append(Tried(desk.every.placement.name, known, why_not=str(desk.lacking)))
    lacking = [desk.lacking for desk in nothing if desk.lacking is not None]
    bound = min((each.bound for each in tried if each.bound is not None), default=math.inf)
    return Partitioned(
        best,
        tuple(searched),
        bound,
        seen,
        tuple(sorted(tried, key=lambda each: (each.cost, each.bound or math.inf))),
        smallest=min(lacking, key=lambda each: (each.device, each.limit), default=None),
    )


def look(desks: Sequence[Desk], budget: Budget, should_stop: StoppingCriterion) -> None:
    """Looks at cuts of all placements by turns, until all are seen or a share of the time is up.

    Where nothing fits so far it goes on for nearly all of it.
    """
    open_ = list(desks)
    looking, longest = budget.share(LOOKING), budget.share(1.0 - LOOKING - CERTIFYING)
    too_long = FirstOf(longest, should_stop)
    while open_ and not should_stop():
        for desk in list(open_):
            cost = min(
                (o.sketch for each in desks for o in each.options.values()), default=math.inf
            )
            cuts = [desk.by_bound(), desk.near_the_best()]
            if desk.bound >= cost * (1 - CLOSED) or cuts == [None, None]:
                open_.remove(desk)
                continue
            for cut in cuts:
                left = looking if any(each.options for each in desks) else longest
                if left():
                    return
                if cut is not None:
                    work = desk.look(cut, cost, too_long)
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
        "at least "
        f"{cutter.rules.least}{most} in each"
    )
