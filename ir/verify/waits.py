"""Checks of the starts and ends of a schedule document's ops and transfers.

Each op or transfer must start exactly when the last of the events that it waits for (its causes)
has happened, and must take exactly the time that follows from the profile. As durations can be 0,
it is also checked that ops and transfers do not wait for each other in a cycle.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, TypeAlias

from ..formats.schedule_document import TimedTransfer as Move
from .schedule_facts import Facts, Run
from .transfers import out_of_range

RELATIVE = 1e-6  # tolerance of times and of figures derived from them
_MOST = 8  # maximum number of entries of a cycle that are named
_PAST = 0.0, "the step's start"
Node: TypeAlias = tuple[int, int]  # (rank, position in its order), or (-1, index) for a transfer


class Cause(NamedTuple):
    """An event that an op or a transfer waits for, at ``time`` (ms), described by ``words``.

    ``node``: the op or transfer that causes the event; it ends at this time, or earlier by the
    delay of a message.
    """

    time: float
    words: str
    node: Node


_NEEDS = {
    "F": (("F", -1),),
    "B": (("F", 0), ("R", 0), ("L", 0), ("B", 1)),
    "BW": (("F", 0), ("R", 0), ("L", 0), ("B", 1)),
    "W": (("B", 0),),
    "R": (("F", 0),),
    "O": (("F", 0),),
    "L": (("O", 0),),
}
"""For each kind of op, the ops that it waits for on the same microbatch, if they exist.

Each is given as (kind, difference between its stage and the op's stage).
"""


def verify_waits(facts: Facts) -> Iterator[str]:
    """Yield a line for each wrong start or end of an op or transfer.

    If ops and transfers wait for each other, a further line names one cycle of them.
    """
    waits = _Waits(facts)
    graph: defaultdict[Node, set[Node]] = defaultdict(set)
    slack = RELATIVE / 1000 * max((run.end for run in facts.runs), default=0.0)  # for times near 0
    for run in facts.runs:
        causes = waits.of_op(run)
        graph[waits.node(run)] |= {cause.node for cause in causes} - {waits.node(run)}
        yield from _op_times(facts, run, causes, slack)
    for move in waits.moves:
        causes = waits.of_move(move)
        graph[-1, move.place] |= {cause.node for cause in causes}
        yield from _move_times(facts, move, causes)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = [_name(facts, node) for node in reversed(error.args[1])]
        more = f" (and so on, {len(circle) - 1} in a circle)" if len(circle) > _MOST else ""
        yield f"can never run: {' waits for '.join(circle[:_MOST])}{more}"


class _Waits:
    """The causes of all ops and transfers.

    ``moves``: the transfers without those whose ranks, stage or positions do not exist.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.moves = [move for move in facts.moves if out_of_range(facts, move) is None]
        self._earlier_ops: dict[Node, list[Run]] = {}
        for row in facts.order:
            occupied: dict[str, Run] = {}
            for run in row:
                wanted = {"O": ("O",), "L": ("op", "O", "L")}.get(run.kind, ("op", "O"))
                earlier = [occupied[kind] for kind in wanted if kind in occupied]
                self._earlier_ops[run.rank, run.at] = earlier
                occupied[run.kind if run.kind in ("O", "L") else "op"] = run
        self._moves: defaultdict[Node, list[Move]] = defaultdict(list)  # moves that an op waits for
        self._earlier_moves: dict[int, list[Move]] = {}  # of its item and on its wires
        last: dict[object, Move] = {}
        for move in self.moves:
            self._moves[move.target, move.before].append(move)
            if move.blocks is not None:
                self._moves[move.source, move.blocks].append(move)
            held = (move.item, *facts.network.wires(move.source, move.target))
            self._earlier_moves[move.place] = [last[each] for each in held if each in last]
            last |= dict.fromkeys(held, move)

    def node(self, run: Run) -> Node:
        """The node of an op; both ops of a pair have the node of its F."""
        return run.rank, run.at - (run.at - 1 in self._facts.pairs[run.rank])

    def of_op(self, run: Run) -> list[Cause]:
        """The causes of an op; if it is in a pair, also those of the other op of the pair."""
        other = self._facts.partner(run)
        return [
            cause
            for one in filter(None, (run, other))
            for cause in (*self._on_rank(one), *self._inputs(one))
        ]

    def _on_rank(self, run: Run) -> Iterator[Cause]:
        """Yield the causes that are earlier ops of the rank.

        An O waits for the last O, and other ops for the last op that occupied the rank and the last
        O. An L also waits for the last L.
        """
        for earlier in self._earlier_ops[run.rank, run.at]:
            if self.node(earlier) != self.node(run):
                yield Cause(earlier.end, f"{earlier} of the same rank ends", self.node(earlier))

    def _inputs(self, run: Run) -> Iterator[Cause]:
        facts, j = self._facts, run.microbatch
        for kind, shift in _NEEDS[run.kind]:
            made = facts.first.get((kind, run.stage + shift, j))
            if made is not None and made is not run:
                # the gradient has the size of the activation
                size = facts.at(min(run.stage, run.stage + shift), j).activation_bytes
                delay = facts.network.delay(made.rank, run.rank, size)
                words = f"{made} of rank {made.rank} has come"
                yield Cause(made.end + delay, words, self.node(made))
        for move in self._moves[run.rank, run.at]:
            yield Cause(move.end, "a weight or gradient has come", (-1, move.place))

    def of_move(self, move: Move) -> list[Cause]:
        causes = [Cause(m.end, f"{m} ends", (-1, m.place)) for m in self._earlier_moves[move.place]]
        for rank, done in ((move.source, move.after), (move.target, move.room)):
            if done > 0:
                run = self._facts.order[rank][done - 1]
                causes.append(Cause(run.end, f"{run} ends", self.node(run)))
        return causes


def _op_times(facts: Facts, run: Run, causes: list[Cause], slack: float) -> Iterator[str]:
    ready, words, *_ = max([(*_PAST, ()), *causes])
    if not math.isclose(run.start, ready, rel_tol=RELATIVE, abs_tol=slack):
        wrong = "before" if run.start < ready else "after"
        yield (
            f"rank {run.rank} starts {run} (op {run.at}) at {run.start:.9g}, {wrong} "
            f"{ready:.9g}, when {words}"
        )
    end = run.start + _duration(facts, run)
    if not math.isclose(run.end, end, rel_tol=RELATIVE, abs_tol=slack):
        yield (
            f"rank {run.rank} ends {run} (op {run.at}) at {run.end:.9g}, expected {end:.9g}: its "
            "start and its duration"
        )


def _move_times(facts: Facts, move: Move, causes: list[Cause]) -> Iterator[str]:
    start = max([0.0, *(cause.time for cause in causes)])
    sizes = facts.stage(move.stage)
    size = sizes.weight_bytes
    if move.kind == "gradient" and sizes.grad_bytes is not None:
        size = sizes.grad_bytes
    end = move.start + facts.network.transfer_delay(move.source, move.target, size or 0.0)
    if not _close(move.start, start):
        yield f"{move}: starts at {move.start:g}, by the rule at {start:g}"
    if not _close(move.end, end):
        yield f"{move}: ends at {move.end:g}, by its delay at {end:g}"


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(1.0, abs(a), abs(b))


def _duration(facts: Facts, run: Run) -> float:
    """The duration of an op, or of the pair that it belongs to, in ms.

    A pair takes the sum of its ops' times minus the smaller of their savings (:func:`_saved`), but
    no less than either op.
    """
    other, alone = facts.partner(run), facts.duration(run)
    if other is None:
        return alone
    second = facts.duration(other)
    saved = min(_saved(facts, run), _saved(facts, other))
    return max(alone, second, alone + second - saved)


def _saved(facts: Facts, run: Run) -> float:
    """The time, in ms, that an F and a BW of the op's stage save by running as a pair."""
    at_once = facts.stage(run.stage).t_fb
    if at_once is None:
        return 0.0
    alone = facts.at(run.stage, run.microbatch).durations
    return alone["F"] + alone["BW"] - at_once


def _name(facts: Facts, node: Node) -> str:
    rank, at = node
    return f"transfers[{at}]" if rank < 0 else f"rank {rank}'s {facts.order[rank][at]}"
