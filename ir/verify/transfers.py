"""Checks the transfers of a weight-passing schedule, from its document only.

For every streamed stage (the others are replicated on the ranks that run them):

- its weights start on one rank, its owner, and every D ends there;
- the transfers of a copy are connected;
- the weights are available to every F and B, on the owner or in a copy that arrived before;
- every weight gradient is the owner's own, or leaves its rank with the next D;
- every transfer starts exactly when its rule allows, in the order of the list on each wire, and
  takes exactly as long as the profile says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise

from ..units import counted
from .schedule_facts import Facts, Move, Run

_TOLERANCE = 1e-9


def verify_transfers(facts: Facts) -> list[str]:
    """The violations of the transfers of a schedule, one line each.

    Whether ops wait for transfers is checked with the ops, by :func:`arrivals`.
    """
    wrong = ((move, _out_of_range(facts, move)) for move in facts.moves)
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
    return [*problems, *_wrong_times(facts)]


def arrivals(facts: Facts) -> dict[tuple[int, int], float]:
    """For each op that waits for transfers, by rank and position: the last end of these."""
    latest: dict[tuple[int, int], float] = {}
    for move in facts.moves:
        waiting = [(move.target, move.before)]
        if move.blocks is not None:
            waiting.append((move.source, move.blocks))
        for key in waiting:
            latest[key] = max(latest.get(key, 0.0), move.end)
    return latest


def _out_of_range(facts: Facts, move: Move) -> str | None:
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
    stage: int, weights: list[list[Move]], sums: list[list[Move]], problems: list[str]
) -> int:
    """The rank where the stage's weights start; adds to ``problems`` if copies or D's disagree."""
    starts = [(journey[0], journey[0].source) for journey in weights]
    ends = [(journey[-1], journey[-1].target) for journey in sums]
    owner = (starts or ends)[0][1]
    problems += [
        f"{move}: sets out from rank {rank}, but stage {stage} is owned by rank {owner}"
        for move, rank in starts
        if rank != owner
    ]
    problems += [
        f"{move}: ends on rank {rank}, but stage {stage} is owned by rank {owner}"
        for move, rank in ends
        if rank != owner
    ]
    return owner


def _missing_weights(
    facts: Facts, stage: int, owner: int, weights: list[list[Move]]
) -> Iterator[str]:
    """Ops of ``stage`` on a rank without its weights."""
    came: defaultdict[int, list[int]] = defaultdict(list)
    for move in chain.from_iterable(weights):
        came[move.target].append(move.before)
    for run in facts.runs:
        if run.stage != stage or run.kind == "W" or run.rank == owner:
            continue
        if not any(before <= run.at for before in came[run.rank]):
            yield f"{_name(run)}: the weights of stage {stage} are not there"


def _lost_gradients(facts: Facts, stage: int, owner: int, sums: list[list[Move]]) -> Iterator[str]:
    """Weight gradients that never leave a rank other than the owner.

    They leave only once, with the next D, and every D ends at the owner.
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


def _wrong_times(facts: Facts) -> Iterator[str]:
    came: dict[tuple[str, int, int], float] = {}  # by item: end of its last transfer
    free: dict[object, float] = {}  # by wire: end of its last transfer
    for move in facts.moves:
        wires = facts.network.wires(move.source, move.target)
        start = max([came.get(move.item, 0.0), *(free.get(wire, 0.0) for wire in wires)])
        if move.after > 0:
            start = max(start, facts.order[move.source][move.after - 1].end)
        if move.room > 0:
            start = max(start, facts.order[move.target][move.room - 1].end)
        end = move.start + _delay(facts, move)
        if not _close(move.start, start):
            yield f"{move}: starts at {move.start:g}, by the rule at {start:g}"
        if not _close(move.end, end):
            yield f"{move}: ends at {move.end:g}, by its delay at {end:g}"
        came[move.item] = move.end
        free.update(dict.fromkeys(wires, move.end))


def _delay(facts: Facts, move: Move) -> float:
    sizes = facts.stage(move.stage)
    size = sizes.weight_bytes
    if move.tensor == "gradient" and sizes.grad_bytes is not None:
        size = sizes.grad_bytes
    return facts.network.transfer_delay(move.source, move.target, size or 0.0)


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= _TOLERANCE * max(1.0, abs(a), abs(b))


def _name(run: Run) -> str:
    return f"rank {run.rank}, op {run.at} ({run})"
