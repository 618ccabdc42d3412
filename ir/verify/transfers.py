"""Checks of the transfers of a weight-passing schedule, from its document only.

A copy is a copy of a stage's weights, or a D (an accumulator of the stage's gradient that is sent
from rank to rank). A stage without transfers is replicated on the ranks that run it. For every
other stage:

- all copies of its weights start on one rank, its owner, and every D ends there;
- each transfer of a copy starts on the rank where the copy's previous transfer ended;
- the weights are available to every F and B, on the owner or in a copy that has arrived before;
- every weight gradient is computed on the owner, or leaves its rank with the next D.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise

from ..formats.schedule_document import TimedTransfer as Move
from ..units import counted
from .schedule_facts import Facts, Run


def verify_transfers(facts: Facts) -> list[str]:
    """All violations of the rules for transfers, one line each, except those of times.

    The times of transfers are checked in :mod:`.waits`.
    """
    wrong = ((move, out_of_range(facts, move)) for move in facts.moves)
    problems = [f"transfers[{move.place}]: {line}" for move, line in wrong if line]
    if problems:
        return problems
    items: dict[tuple[str, int, int], list[Move]] = defaultdict(list)
    for move in facts.moves:
        items[move.item].append(move)
    for journey in items.values():
        problems += _broken_links(journey)
    for stage in range(facts.plan.stages):
        weights = [j for (tensor, s, _), j in items.items() if tensor == "weight" and s == stage]
        sums = [j for (tensor, s, _), j in items.items() if tensor == "gradient" and s == stage]
        if not (weights or sums):
            continue  # it is replicated on all ranks that run it
        owner = _owner(stage, weights, sums, problems)
        problems += _missing_weights(facts, stage, owner, weights)
        problems += _lost_gradients(facts, stage, owner, sums)
    return problems


def out_of_range(facts: Facts, move: Move) -> str | None:
    """The reason why the ranks, stage or positions of ``move`` cannot exist; None if they can."""
    ranks = facts.plan.ranks
    if max(move.source, move.target) >= ranks:
        return f"goes from rank {move.source} to {move.target} of {counted(ranks, 'rank')}"
    if move.source == move.target:
        return f"goes from rank {move.source} to itself"
    if move.stage >= facts.plan.stages:
        return f"stage: expected less than {facts.plan.stages}, got {move.stage}"
    ends = {"after": move.source, "before": move.target, "room": move.target, "blocks": move.source}
    for key, rank in ends.items():
        number, given = len(facts.order[rank]), getattr(move, key) or 0
        if given > number:
            return f"{key}: expected at most {number}, the number of rank {rank}'s ops, got {given}"
    return None


def _broken_links(journey: list[Move]) -> list[str]:
    return [
        f"{later}: its copy is on rank {earlier.target} then"
        for earlier, later in pairwise(journey)
        if earlier.target != later.source
    ]


def _owner(
    stage: int,
    weights: list[list[Move]],
    sums: list[list[Move]],
    problems: list[str],
) -> int:
    """Return the owner of ``stage``: the rank where its weights start or its gradients end.

    ``weights``, ``sums``: the transfers of each copy of its weights, and of each D. Appends a line
    to ``problems`` for each copy that starts, or D that ends, on another rank.
    """
    starts = [(journey[0], journey[0].source) for journey in weights]
    ends = [(journey[-1], journey[-1].target) for journey in sums]
    owner = (starts or ends)[0][1]
    problems += [
        f"{move}: {what} rank {rank}, but stage {stage} is owned by rank {owner}"
        for what, homes in (("sets out from", starts), ("ends on", ends))
        for move, rank in homes
        if rank != owner
    ]
    return owner


def _missing_weights(
    facts: Facts, stage: int, owner: int, weights: list[list[Move]]
) -> Iterator[str]:
    """Yield a line for each F or B of ``stage`` that has no weights of the stage on its rank.

    ``weights``: the transfers of each copy of the stage's weights.
    """
    came: defaultdict[int, list[int]] = defaultdict(list)
    for move in chain.from_iterable(weights):
        came[move.target].append(move.before)
    for run in facts.runs:
        if run.stage != stage or run.kind == "W" or run.rank == owner:
            continue
        if not any(before <= run.at for before in came[run.rank]):
            yield f"{_name(run)}: the weights of stage {stage} are not there"


def _lost_gradients(facts: Facts, stage: int, owner: int, sums: list[list[Move]]) -> Iterator[str]:
    """Yield a line for each W or BW whose gradient never leaves a rank that is not the owner.

    ``sums``: the transfers of each D of ``stage``. A gradient leaves with the next D of the stage
    that its rank sends. As every D ends on the owner, it then reaches the owner exactly once.
    """
    leaves: defaultdict[int, list[int]] = defaultdict(list)
    for move in chain.from_iterable(sums):
        leaves[move.source].append(move.after)
    for run in facts.runs:
        if run.stage != stage or run.kind not in ("W", "BW") or run.rank == owner:
            continue
        if not any(after > run.at for after in leaves[run.rank]):
            yield (
                f"{_name(run)}: no D of stage {stage} takes its gradient to the owner, rank {owner}"
            )


def _name(run: Run) -> str:
    return f"rank {run.rank}, op {run.at} ({run})"
