"""Cut, placement and schedule together: many cuts at a glance, the best few searched, one to the end.

1. Every placement has a bound on all its cuts (:mod:`.every`), and first cuts: the one of the least
   bound, the balanced and the even one.
2. From there cuts are looked at by turns in two orders: the next by its bound, and the neighbours of the best so far. A
   look takes the bounds of that cut and, where they allow it to win, a schedule built without search.
3. The best is searched for a moment, then a few, then two, then one for the rest of the time; what was found is
   tried on other cuts in between (:mod:`.finals`). What its bound proves no better is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeloom.ir.layered import LayeredProfile
from pipeloom.ir.problem import Objective, Placement

from ..allowance import Allowance
from .cuts import Cutter, Rules
from .desk import Desk, Way
from .every import EveryCut
from .finals import CERTIFYING, LOOKING, Finals, Search
from .options import CLOSED, Option


@dataclass(frozen=True, slots=True)
class Partitioned:
    """``best``: None where nothing fits, as ``why_not`` says of each placement that has no cut.

    No schedule of any cut with any of the placements costs less than ``bound``. ``searched``: the best
    first; ``seen``: how many cuts were looked at. ``no_cut``: the layers cannot be cut for any of the placements.
    """

    best: Option | None
    searched: tuple[Option, ...]
    bound: float
    seen: int
    why_not: dict[str, str]
    no_cut: bool = False


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
    allowance: Allowance | None = None,
    seed: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
) -> Partitioned:
    """The best cut, placement and schedule within ``allowance``.

    ``search`` is the optimizer, given shares of that. Activations keep the
    memory limit, and what a rank's weights, gradients and optimizer state leave of ``device_memory``.
    """
    allowance = allowance or Allowance()
    limit = profile.cluster.limit_from(memory_limit)
    desks, why_not, cannot = [], {}, True
    for placement in placements:
        cutter = Cutter(profile, len(placement.owners), rules or Rules())
        every = EveryCut(cutter, placement, microbatches, limit, objective)
        desk = Desk(every, seed)
        if (reason := _no_cut(cutter)) is None:
            cannot, reason = False, desk.open(way)
        if reason is None:
            desks.append(desk)
        else:
            why_not[placement.name] = reason
    if way is Way.JOINT:
        look(desks, allowance.again(LOOKING), should_stop)
    searched: list[Option] = []
    if any(desk.options for desk in desks):
        finals = Finals(desks, search, allowance, should_stop)
        searched = finals.joint() if way is Way.JOINT else finals.each()
    for desk in desks:
        if not desk.options:
            why_not[desk.every.placement.name] = "no cut was found that fits in memory"
    best = min(searched, key=lambda option: option.cost, default=None)
    cost = math.inf if best is None else best.cost
    bounds = [desk.certified(cost, allowance.again(CERTIFYING / len(desks))) for desk in desks]
    seen = sum(desk.seen for desk in desks)
    bound = min(bounds, default=math.inf)
    return Partitioned(best, tuple(searched), bound, seen, why_not, no_cut=not desks and cannot)


def look(desks: Sequence[Desk], looking: Allowance, should_stop: Callable[[], bool]) -> None:
    """Looks at cuts of all placements by turns, until all are seen or time is up."""
    open_ = list(desks)
    while open_ and not looking.spent and not should_stop():
        for desk in list(open_):
            cost = min(
                (o.sketch for each in desks for o in each.options.values()), default=math.inf
            )
            cuts = [desk.by_bound(), desk.near_the_best()]
            if desk.bound >= cost * (1 - CLOSED) or cuts == [None, None]:
                open_.remove(desk)
                continue
            for cut in cuts:
                if cut is not None and not looking.spent:
                    looking.spend(desk.look(cut, cost))


def _no_cut(cutter: Cutter) -> str | None:
    """Why there is no cut; None where there is one."""
    if cutter.even() is not None:
        return None
    pieces = cutter.number - sum(cutter.profile.tied)
    if pieces < cutter.stages:
        return f"{pieces} layers that may be cut apart are fewer than its {cutter.stages} stages"
    most = "" if cutter.rules.most is None else f" and at most {cutter.rules.most}"
    return (
        f"no cut of {cutter.number} layers into {cutter.stages} stages has at least "
        f"{cutter.rules.least}{most} in each"
    )
