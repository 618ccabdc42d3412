"""The kernel of the local search: simulated annealing of the order of ops on all ranks.

One loop serves all kinds of problems. An argument that is None is left out when the kernel is
compiled.

===========  =====================================  ===========================================
argument     moves                                  evaluator
===========  =====================================  ===========================================
(none)       shift ops                              simulator
``remat``    shift ops; change choices of remat     simulator with remat
``filling``  shift ops; follow a microbatch;        :func:`.forward.play`, with W's filled in
             change ``patience``
``pairs``    shift ops; make a pair                 :func:`.forward.play`, with pairs
===========  =====================================  ===========================================
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.remat import Choice
from pipeloom.ir.cost.simulator import RematArrays, run_kernel
from pipeloom.ir.model.ops import IntArray, OpKind

from ...core.kernels import kind_of, lean, random
from .forward import is_pair, play
from .lists import Filling, Lists, PairTimes, Remat
from .moves import (
    CRITICAL,
    EDGES,
    anywhere,
    at_an_edge,
    copy_places,
    cost_of,
    critical_blocks,
    keeps_rules,
    make_pair,
    move_along,
    move_run,
    note,
    rank_of,
    several,
)
from .remat_moves import CHANGES, change_choices

PATIENCE = 0.05  # share of the moves that change how long a rank waits before a W is filled in
ALONG = 0.3  # share of the moves that follow a microbatch, if W's are filled in
JOIN = 0.35  # share of the moves that make a pair
_W = int(OpKind.W)


@lean
def anneal(  # noqa: PLR0917
    lists: Lists,  # changed in place
    remat: Remat | None,
    filling: Filling | None,
    pairs: PairTimes | None,
    best: IntArray,  # (T,) out: the best order found, if it costs less than best_cost
    best_cost: float,
    makespan: bool,
    hot: float,  # temperature of the first move, in units of cost
    cold: float,  # temperature of the last move
    moves: int,
    stopped: npt.NDArray[np.bool_],  # (1,) ends the search when another thread sets it
) -> float:
    """Change the order in ``lists`` by simulated annealing with ``moves`` moves.

    The temperature falls geometrically from ``hot`` to ``cold``. The module's docstring says what
    ``remat``, ``filling`` and ``pairs`` do. ``makespan``: whether the cost is the makespan;
    otherwise it is the period. Returns the cost of ``best``, or ``best_cost`` if no cheaper order
    was found.
    """
    timed = lists.order if filling is None else filling.order
    begins = lists.offsets if filling is None else filling.begins
    stop = begins[1:] if remat is None else remat.stop
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current = hot, np.inf
    lists.known[:] = 0
    for move in range(-1, moves):
        if stopped[0]:
            break
        low, high = 0, len(lists.order) - 1
        if move >= 0:
            temperature *= cooling
            low, high = _moved(lists, remat, filling, pairs)
            if high < low:
                continue
        cost, value, longest = np.inf, np.inf, 0
        if _timed(lists, remat, filling, pairs):
            cost, value, longest = cost_of(begins, stop, lists.start, lists.end, makespan)
        if move < 0 or value <= current - temperature * np.log(1.0 - random(lists.state)):
            current, lists.known[0] = value, longest
            _keep(low, high, lists, remat, filling)
            if value < np.inf:
                lists.known[1] = _blocks(timed, begins, stop, low, high, lists, filling)
            if cost < best_cost:
                best_cost = cost
                copy_places(timed, 0, len(timed) - 1, best, 0)
                if remat is not None:
                    copy_places(remat.stop, 0, len(stop) - 1, remat.best_stop, 0)
        else:
            _restore(low, high, lists, remat, filling)
    return best_cost


@lean
def _moved(
    lists: Lists, remat: Remat | None, filling: Filling | None, pairs: PairTimes | None
) -> tuple[int, int]:
    """Make a random move; return the first and the last position of the order that changed.

    If the move has no effect or would make the order invalid, the order stays as it was, and (0,
    -1) is returned. A change of ``filling.patience`` counts as a change of position 0.
    """
    order, offsets, costs, state = lists.order, lists.offsets, lists.costs, lists.state
    m_w = costs.m_w
    if filling is not None:
        m_w, way = filling.nothing, random(state)
        if way < PATIENCE:
            filling.patience[int(random(state) * len(filling.patience))] = 1.2 * random(state)
            return 0, 0
        if way < PATIENCE + ALONG:
            return 0, len(order) - 1 if move_along(lists, filling) else -1
    if remat is not None and random(state) < CHANGES:
        rank, low, high = change_choices(order, offsets, costs.owner, remat, state)
        last = remat.stop[rank] - 1
    else:
        rank, low, high = _shifted(lists, remat, pairs)
        last = high
    if high < low or keeps_rules(
        order, offsets[rank], low, last, costs.m_b, m_w, costs.limit[rank], remat, lists.done
    ):
        return low, high
    _restore(low, high, lists, remat, filling)
    return 0, -1


@lean
def _shifted(lists: Lists, remat: Remat | None, pairs: PairTimes | None) -> tuple[int, int, int]:
    """Shift ops of one rank or, with ``pairs``, make a pair (an F and a BW that run together).

    Returns the rank, and the first and the last position changed. If nothing has changed, the last
    position returned is less than the first.
    """
    offsets, reach, state = lists.offsets, lists.reach, lists.state
    stop = offsets[1:] if remat is None else remat.stop
    critical, number = lists.known
    if number > 0 and random(state) < EDGES:
        source, target = at_an_edge(lists.blocks, number, reach, state)
        rank = rank_of(offsets, source)
    else:
        rank = critical if random(state) < CRITICAL else int(random(state) * len(stop))
        if stop[rank] - offsets[rank] < 2:
            return 0, 0, -1
        source, target = anywhere(offsets[rank], stop[rank] - offsets[rank], reach, state)
    together, first, last = several(state), offsets[rank], stop[rank]
    if pairs is not None:
        if random(state) < JOIN:
            low, high = make_pair(lists.order, source, first, last, reach, state)
            return rank, low, high
        if is_pair(lists.order, source, last, lists.costs.durations, pairs):
            together = 3
    low, high = move_run(lists.order, source, target, together, first, last, lists.saved)
    return rank, low, high


@lean
def _timed(
    lists: Lists, remat: Remat | None, filling: Filling | None, pairs: PairTimes | None
) -> bool:
    """Write the start and end of all ops to ``lists``; return whether every op can start.

    If one cannot, because it waits for itself through other ops or memory is lacking, the times are
    incomplete.
    """
    if filling is not None or pairs is not None:
        return play(lists, filling, pairs)
    if remat is None:
        return _simulated(lists, lists.offsets[1:], None)
    return _simulated(lists, remat.stop, remat.arrays)


@lean
def _simulated(lists: Lists, stop: IntArray, arrays: RematArrays | None) -> bool:
    durations, owner, into_f, into_b, m_b, m_w, _ = lists.costs
    return run_kernel(
        lists.order, lists.offsets[:-1], stop, durations, owner, into_f, into_b, m_b, m_w, arrays,
        lists.start, lists.end, lists.peak, lists.f_end, lists.b_end, lists.position,
    )  # fmt: skip


@lean
def _blocks(  # noqa: PLR0917
    timed: IntArray,
    begins: IntArray,
    stop: IntArray,
    low: int,  # positions low..high have changed
    high: int,
    lists: Lists,
    filling: Filling | None,
) -> int:
    """Write the blocks of the critical path to ``lists.blocks``, and return their number.

    A block is a sequence of ops that one rank runs without a pause
    (:func:`.moves.critical_blocks`). It is given by its first and last position: among all timed
    ops or, with ``filling``, among the F's and B's only.
    """
    blocks, owner = lists.blocks, lists.costs.owner
    if filling is None:
        note(timed, low, high, lists.place)
    else:
        note(timed, 0, len(timed) - 1, lists.place)
    found = critical_blocks(
        timed, begins, stop, owner, lists.start, lists.end, lists.place, lists.known[0], blocks
    )
    if filling is None:
        return found
    number = 0
    for k in range(found):
        last = filling.source[blocks[k, 1]] - int(kind_of(timed[blocks[k, 1]]) == _W)
        blocks[number, 0], blocks[number, 1] = filling.source[blocks[k, 0]], last
        number += int(blocks[number, 0] < last)
    return number


@lean
def _keep(low: int, high: int, lists: Lists, remat: Remat | None, filling: Filling | None) -> None:
    """Store the order as the last accepted one; they differ only at ``low`` to ``high``."""
    copy_places(lists.order, low, high, lists.kept, low)
    if remat is not None:
        _copy_choices(remat.arrays[0], remat.stop, remat.kept_choice, remat.kept_stop)
    if filling is not None:
        copy_places(filling.patience, 0, len(filling.patience) - 1, filling.kept_patience, 0)
        copy_places(filling.source, 0, len(filling.source) - 1, filling.kept_source, 0)


@lean
def _restore(
    low: int, high: int, lists: Lists, remat: Remat | None, filling: Filling | None
) -> None:
    """Restore the last accepted order; the present one differs only at ``low`` to ``high``."""
    copy_places(lists.kept, low, high, lists.order, low)
    if remat is not None:
        _copy_choices(remat.kept_choice, remat.kept_stop, remat.arrays[0], remat.stop)
    if filling is not None:
        copy_places(filling.kept_patience, 0, len(filling.patience) - 1, filling.patience, 0)


@lean
def _copy_choices(choice: Choice, stop: IntArray, into: Choice, into_stop: IntArray) -> None:
    for stage in range(len(choice)):
        copy_places(choice[stage], 0, choice.shape[1] - 1, into[stage], 0)
    copy_places(stop, 0, len(stop) - 1, into_stop, 0)
