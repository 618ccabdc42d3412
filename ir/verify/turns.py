"""Checks that ops and transfers of a schedule document do not wait for each other in a cycle.

Usually the times show this, too, but not if they are 0 or far below the longest ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from .schedule_facts import Facts, Run

_MOST = 8  # most entries of a cycle that are named
_Node = tuple[int, int]  # (rank, position in its order), or (-1, index) for a transfer
_Graph = dict[_Node, set[_Node]]


def verify_turns(facts: Facts, first: dict[tuple[str, int, int], Run]) -> Iterator[str]:
    """A line with a cycle of ops and transfers that wait for each other, if there is one.

    ``first``: the first run of each op, with a BW as B and as W.
    """
    waits: _Graph = defaultdict(set)
    for row in facts.order:
        for run in row:
            waits[_node(facts, run)] |= set(_causes(facts, first, run))
    for node, cause in _transfers(facts):
        waits[node].add(cause)
    for node, causes in waits.items():
        causes.discard(node)  # the ops of a pair share a node
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = [_words(facts, node) for node in reversed(error.args[1])]
        more = f" (and so on, {len(circle) - 1} in a circle)" if len(circle) > _MOST else ""
        yield f"can never run: {' waits for '.join(circle[:_MOST])}{more}"


def _node(facts: Facts, run: Run) -> _Node:
    """The node of an op in the graph of waits; both ops of a pair have the node of the F."""
    at_once = run.at - 1 in facts.pairs[run.rank]
    return run.rank, run.at - 1 if at_once else run.at


def _causes(facts: Facts, first: dict[tuple[str, int, int], Run], run: Run) -> Iterator[_Node]:
    """The previous op on the rank, and the ops that compute the inputs."""
    if run.at > 0 and run.kind != "O":
        yield _node(facts, facts.order[run.rank][run.at - 1])
    s, j = run.stage, run.microbatch
    needs = {"F": [("F", s - 1)], "W": [("B", s)], "L": [("O", s)]}
    backward = [("F", s), ("R", s), ("L", s), ("B", s + 1)]
    kinds = backward if run.kind in ("B", "BW") else needs.get(run.kind, [("F", s)])
    for kind, stage in kinds:
        made = first.get((kind, stage, j))
        if made is not None:
            yield _node(facts, made)


def _transfers(facts: Facts) -> Iterator[tuple[_Node, _Node]]:
    """(node, node it waits for) of each transfer, and of ops that wait for transfers."""
    last: dict[object, _Node] = {}
    for move in facts.moves:
        if max(move.source, move.target) >= len(facts.order):
            continue  # reported by the checks of transfers
        node = (-1, move.place)
        wires = facts.network.wires(move.source, move.target)
        for held in (move.item, *wires):
            if held in last:
                yield node, last[held]
            last[held] = node
        for rank, done in ((move.source, move.after), (move.target, move.room)):
            if 0 < done <= len(facts.order[rank]):
                yield node, _node(facts, facts.order[rank][done - 1])
        ends = ((move.target, move.before), (move.source, move.blocks))
        for rank, at in ends:
            if at is not None and at < len(facts.order[rank]):
                yield _node(facts, facts.order[rank][at]), node


def _words(facts: Facts, node: _Node) -> str:
    rank, at = node
    return f"transfers[{at}]" if rank < 0 else f"rank {rank}'s {facts.order[rank][at]}"
