"""Transfers and ops timed by the rules alone: plain loops that share nothing with the simulator."""

from __future__ import annotations

from collections import deque

from pipeloom.ir import Op, OpKind, Profile, Schedule, Sharing, Transfer, TransferKind


def occupied_wires(profile: Profile, source: int, target: int) -> list[object]:
    """The wires of a message in the order in which it passes them, each by any name; none without
    links."""
    if profile.links is None:
        return []
    shared = profile.links.shared
    if shared is Sharing.PORTS:
        return [("out", source), ("in", target)]
    if shared is Sharing.RING:
        return _shortest_way(source, target, profile.ranks)
    own: list[object] = [(source, target)]
    if isinstance(shared, tuple):
        own += [number for number, group in enumerate(shared) if (source, target) in group]
    return own


def _shortest_way(source: int, target: int, ranks: int) -> list[object]:
    """Breadth first round the circle, the neighbour above before the one below."""
    queue: deque[tuple[int, list[object]]] = deque([(source, [])])
    while True:
        at, way = queue.popleft()
        if at == target:
            return way
        for step in (1, -1):
            queue.append(((at + step) % ranks, [*way, (at, (at + step) % ranks)]))


def lasts(profile: Profile, transfer: Transfer) -> float:
    """What a transfer takes."""
    stage = profile.stages[transfer.stage]
    size = stage.weight_bytes or 0.0
    if transfer.kind is TransferKind.GRADIENT and stage.grad_bytes is not None:
        size = stage.grad_bytes
    if profile.links is None:
        assert not isinstance(profile.t_comm, tuple)
        return profile.t_comm or 0.0
    return over_links(profile, transfer.source, transfer.target, size)


def over_links(profile: Profile, source: int, target: int, size: float) -> float:
    """Of links that are all alike."""
    assert profile.links is not None
    assert not profile.links.pairs
    link, hops = profile.links.default, 1
    if profile.links.shared is Sharing.RING:
        hops = len(occupied_wires(profile, source, target))
    return hops * link.latency + size / (link.gigabytes_per_second * 1e6)


def needs_of(op: Op, stages: int) -> list[tuple[str, int, int]]:
    """(F or B, stage, microbatch) of each op that makes an input of ``op``."""
    s, j = op.stage, op.microbatch
    if op.kind is OpKind.F:
        return [("F", s - 1, j)] if s > 0 else []
    if op.kind is OpKind.W:
        return [("B", s, j)]
    return [("F", s, j), *([("B", s + 1, j)] if s + 1 < stages else [])]


def duration_of(profile: Profile, op: Op) -> float:
    stage = profile.stages[op.stage]
    parts = {OpKind.F: (stage.t_f,), OpKind.B: (stage.t_b,), OpKind.W: (stage.t_w,)}
    return sum(parts.get(op.kind, (stage.t_b, stage.t_w)))


def listed_times(schedule: Schedule) -> list[tuple[float, float]]:
    """Start and end of every transfer of a schedule in which no activations travel.

    Looks again and again for anything that may start by what has ended, until nothing is left.
    """
    clock = _Listed(schedule)
    while clock.advance_transfers() or clock.advance_ops():
        pass
    assert len(clock.times) == len(schedule.transfers), "some transfer never starts"
    return [times for _, times in sorted(clock.times.items())]


class _Listed:
    """What has run so far: each rank's ops and the transfers, those on a wire as listed."""

    def __init__(self, schedule: Schedule) -> None:
        self.profile, self.transfers = schedule.problem.profile, schedule.transfers
        self.rows = [schedule.ops(rank) for rank in range(schedule.problem.ranks)]
        self.ends: list[list[float]] = [[] for _ in self.rows]
        self.made: dict[tuple[str, int, int], float] = {}
        self.times: dict[int, tuple[float, float]] = {}
        self.wires = [set(occupied_wires(self.profile, t.source, t.target)) for t in self.transfers]

    def advance_transfers(self) -> bool:
        before = len(self.times)
        for i, transfer in enumerate(self.transfers):
            start = None if i in self.times else self.transfer_start(i, transfer)
            if start is not None:
                self.times[i] = start, start + lasts(self.profile, transfer)
        return len(self.times) > before

    def transfer_start(self, i: int, t: Transfer) -> float | None:
        earlier = [
            k
            for k, other in enumerate(self.transfers[:i])
            if other.item == t.item or self.wires[i] & self.wires[k]
        ]
        sent, received = self.ends[t.source][: t.after], self.ends[t.target][: t.room]
        if any(k not in self.times for k in earlier) or (len(sent), len(received)) != (
            t.after,
            t.room,
        ):
            return None
        return max([0.0, *sent, *received, *(self.times[k][1] for k in earlier)])

    def advance_ops(self) -> bool:
        before = len(self.made), sum(map(len, self.ends))
        for rank, row in enumerate(self.rows):
            at = len(self.ends[rank])
            start = self.op_start(rank, row[at], at) if at < len(row) else None
            if start is not None:
                self.run(rank, row[at], start + duration_of(self.profile, row[at]))
        return (len(self.made), sum(map(len, self.ends))) != before

    def op_start(self, rank: int, op: Op, at: int) -> float | None:
        awaited = [
            i
            for i, t in enumerate(self.transfers)
            if (t.target == rank and t.before <= at)
            or (t.source == rank and t.blocks is not None and t.blocks <= at)
        ]
        needed = needs_of(op, len(self.profile.stages))
        if any(i not in self.times for i in awaited) or any(k not in self.made for k in needed):
            return None
        arrived = [self.times[i][1] for i in awaited]
        return max([0.0, *self.ends[rank], *arrived, *(self.made[key] for key in needed)])

    def run(self, rank: int, op: Op, end: float) -> None:
        self.ends[rank].append(end)
        kind = "B" if op.kind is OpKind.BW else op.kind.name
        self.made[kind, op.stage, op.microbatch] = end
