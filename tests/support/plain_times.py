"""Times of schedules by the rules: plain loops that share no code with :mod:`pipeloom.ir.cost`.

:class:`Playing` simulates iterations step by step, and wires are first come, first served; in
:func:`listed_times`, a wire carries transfers in the order of their list. If there are wires,
messages must take some time, as otherwise the order of simultaneous messages is not defined. All
links are equal.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import NamedTuple

from pipeloom.ir import Op, OpKind, Profile, Schedule, Sharing, Transfer, TransferKind


def occupied_wires(profile: Profile, source: int, target: int) -> list[object]:
    """The wires that a message occupies, in order, with arbitrary names; empty without links."""
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
    """Breadth-first search in the ring; upwards if both directions are equally long."""
    queue: deque[tuple[int, list[object]]] = deque([(source, [])])
    while True:
        at, way = queue.popleft()
        if at == target:
            return way
        for step in (1, -1):
            queue.append(((at + step) % ranks, [*way, (at, (at + step) % ranks)]))


def lasts(profile: Profile, transfer: Transfer) -> float:
    """The duration of a transfer."""
    stage = profile.stages[transfer.stage]
    size = stage.weight_bytes or 0.0
    if transfer.kind is TransferKind.GRADIENT and stage.grad_bytes is not None:
        size = stage.grad_bytes
    if profile.links is None:
        assert not isinstance(profile.t_comm, tuple)
        return profile.t_comm or 0.0
    return over_links(profile, transfer.source, transfer.target, size)


def over_links(profile: Profile, source: int, target: int, size: float) -> float:
    """The duration of a message over links that are all equal."""
    assert profile.links is not None
    assert not profile.links.pairs
    link, hops = profile.links.default, 1
    if profile.links.shared is Sharing.RING:
        hops = len(occupied_wires(profile, source, target))
    return hops * link.latency + size / (link.gigabytes_per_second * 1e6)


def needs_of(op: Op, stages: int) -> list[tuple[str, int, int]]:
    """(F or B, stage, microbatch) of each op that produces an input of ``op``."""
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


class Thing(NamedTuple):
    """An op, a notice of room for a message, an activation message, a transfer, or an all-reduce.

    They are sorted in this order.
    """

    iteration: int
    sort: str  # "0 op", "1 notice", "2 message", "3 transfer" or "4 sum"
    number: tuple[int, ...]
    # op: rank, position; message: forward or not, its receiver's; transfer; stage; a notice's
    # is 2 (message) or 3 (transfer), then that one's


class Leg(NamedTuple):
    """A thing on one of its wires, counted from 0; an op is one leg without a wire."""

    thing: Thing
    hop: int


class Rules:
    """For each thing of a schedule, what it waits for, its duration, and its ranks."""

    def __init__(self, schedule: Schedule, iterations: int = 1) -> None:
        self.schedule, self.profile = schedule, schedule.problem.profile
        self.ranks = range(schedule.problem.ranks)
        self.rows = [schedule.ops(rank) for rank in self.ranks]
        self.things = [
            thing._replace(iteration=i) for i in range(iterations) for thing in self.once
        ]
        self.needs: dict[Thing, list[Thing]] = {}
        for thing in self.things:
            self.needs[thing] = self.needs_of(thing)

    @cached_property
    def once(self) -> list[Thing]:
        """All things of one iteration."""
        ops = [Thing(0, "0 op", (r, i)) for r in self.ranks for i in range(len(self.rows[r]))]
        messages = [message for op in ops if (message := self.message_to(op)) is not None]
        number = range(len(self.schedule.transfers))
        sums = [Thing(0, "4 sum", (stage,)) for stage in self.holders]
        messages += [Thing(0, "3 transfer", (i,)) for i in number]
        notices = [self.notice_of(each) for each in messages] if self.profile.links else []
        return [*ops, *notices, *messages, *sums]

    def notice_of(self, message: Thing) -> Thing:
        return Thing(message.iteration, "1 notice", (int(message.sort[0]), *message.number))

    def message_of(self, notice: Thing) -> Thing:
        sort = {2: "2 message", 3: "3 transfer"}[notice.number[0]]
        return Thing(notice.iteration, sort, notice.number[1:])

    @cached_property
    def holders(self) -> dict[int, list[int]]:
        """The ranks of each stage that runs on several ranks and is not passed."""
        users: dict[int, set[int]] = {}
        for rank, row in enumerate(self.rows):
            for op in row:
                users.setdefault(op.stage, set()).add(rank)
        travels = {t.stage for t in self.schedule.transfers}
        return {
            s: sorted(ranks) for s, ranks in users.items() if len(ranks) > 1 and s not in travels
        }

    def circle(self, stage: int) -> list[tuple[int, int]]:
        """The hops of a stage's all-reduce."""
        ranks = self.holders[stage]
        return [(rank, ranks[(i + 1) % len(ranks)]) for i, rank in enumerate(ranks)]

    @cached_property
    def homes(self) -> dict[tuple[str, int, int], tuple[int, int]]:
        """Rank and position of the op that produces each output."""
        homes = {}
        for rank, row in enumerate(self.rows):
            for i, op in enumerate(row):
                kind = "B" if op.kind is OpKind.BW else op.kind.name
                homes[kind, op.stage, op.microbatch] = rank, i
        return homes

    def op(self, thing: Thing) -> Op:
        rank, position = thing.number[-2:]
        return self.rows[rank][position]

    def message_to(self, thing: Thing) -> Thing | None:
        """The message with the op's input, if another rank produces it."""
        made = self.maker(thing)
        if made is None or made[0] == thing.number[0]:
            return None
        backward = int(self.op(thing).kind is not OpKind.F)
        return Thing(thing.iteration, "2 message", (backward, *thing.number))

    def maker(self, thing: Thing) -> tuple[int, int] | None:
        """Rank and position of the op on a neighbouring stage that produces the input."""
        op = self.op(thing)
        beside = [key for key in needs_of(op, self.schedule.problem.stages) if key[1] != op.stage]
        return self.homes[beside[0]] if beside else None

    def ends_of(self, thing: Thing) -> tuple[int, ...]:
        """Source and target rank; for an all-reduce, all ranks that take part."""
        if thing.sort == "4 sum":
            return tuple(self.holders[thing.number[0]])
        if thing.sort == "3 transfer":
            transfer = self.schedule.transfers[thing.number[0]]
            return transfer.source, transfer.target
        if thing.sort == "0 op":
            return thing.number[0], thing.number[0]
        if thing.sort == "1 notice":
            return self.ends_of(self.message_of(thing))[::-1]
        made = self.maker(thing)
        assert made is not None
        return made[0], thing.number[1]

    def needs_of(self, thing: Thing) -> list[Thing]:
        if thing.sort == "0 op":
            return self.begun({thing.number[0]}, thing.iteration) + self.needs_of_op(thing)
        if thing.sort == "4 sum":
            i, ranks = thing.iteration, set(self.ends_of(thing))
            earlier = [other for other in self.once if other < thing._replace(iteration=0)]
            return self.begun(ranks, i) + self.needs_of_end(ranks, i, earlier)
        if thing.sort == "1 notice":
            return self.needs_of_room(self.message_of(thing))
        noticed = [self.notice_of(thing)] if self.profile.links else self.needs_of_room(thing)
        return self.needs_of_sending(thing) + noticed

    def begun(self, ranks: set[int], iteration: int) -> list[Thing]:
        """The things that ``ranks`` have finished before they begin the iteration."""
        return self.needs_of_end(ranks, iteration - 1, self.once) if iteration > 0 else []

    def needs_of_room(self, message: Thing) -> list[Thing]:
        i, target = message.iteration, self.ends_of(message)[1]
        room = 0
        if message.sort == "3 transfer":
            room = self.schedule.transfers[message.number[0]].room
        return self.begun({target}, i) + [Thing(i, "0 op", (target, k)) for k in range(room)]

    def needs_of_sending(self, message: Thing) -> list[Thing]:
        i, source = message.iteration, self.ends_of(message)[0]
        result = self.begun({source}, i)
        if message.sort == "2 message":
            made = self.maker(message)
            assert made is not None
            return [*result, Thing(i, "0 op", made)]
        (number,) = message.number
        t = self.schedule.transfers[number]
        result += [Thing(i, "0 op", (source, k)) for k in range(t.after)]
        same = [k for k in range(number) if self.schedule.transfers[k].item == t.item]
        return result + [Thing(i, "3 transfer", (k,)) for k in same]

    def needs_of_end(self, ranks: set[int], iteration: int, things: list[Thing]) -> list[Thing]:
        """The things after which ``ranks`` are done with an iteration.

        A message that they send only has to be ready, not transferred.
        """
        result = []
        for thing in (other._replace(iteration=iteration) for other in things):
            if thing.sort == "1 notice":
                continue
            ends = self.ends_of(thing)
            arrives = thing.sort in ("2 message", "3 transfer")
            if ranks & set(ends[1:] if arrives else ends):
                result.append(thing)
            elif arrives and ends[0] in ranks:
                result += self.needs[thing]
        return list(dict.fromkeys(result))

    def needs_of_op(self, thing: Thing) -> list[Thing]:
        i, (rank, position) = thing.iteration, thing.number
        message = self.message_to(thing)
        made = needs_of(self.op(thing), self.schedule.problem.stages)
        result = [Thing(i, "0 op", (rank, position - 1))] if position else []
        result += [Thing(i, "0 op", self.homes[key]) for key in made]
        result += [message] if message else []
        for k, t in enumerate(self.schedule.transfers):
            comes = t.target == rank and t.before <= position
            leaves = t.source == rank and t.blocks is not None and t.blocks <= position
            if comes or leaves:
                result.append(Thing(i, "3 transfer", (k,)))
        return result

    def duration(self, thing: Thing) -> float:
        if thing.sort == "0 op":
            return duration_of(self.profile, self.op(thing))
        if thing.sort == "1 notice":
            return 0.0
        if thing.sort == "3 transfer":
            return lasts(self.profile, self.schedule.transfers[thing.number[0]])
        if thing.sort == "4 sum":
            return self.sum_duration(thing.number[0])
        if self.profile.t_comm is not None:
            assert not isinstance(self.profile.t_comm, tuple)
            return self.profile.t_comm
        if self.profile.links is None:
            return 0.0
        op = self.op(thing)
        sender = op.stage - 1 if op.kind is OpKind.F else op.stage
        size = self.profile.stages[sender].activation_bytes or 0.0
        source, target = self.ends_of(thing)
        return over_links(self.profile, source, target, size)

    def sum_duration(self, stage: int) -> float:
        hops, steps = self.circle(stage), 2 * (len(self.holders[stage]) - 1)
        if self.profile.links is None:
            assert not isinstance(self.profile.t_comm, tuple)
            return steps * (self.profile.t_comm or 0.0)
        sizes = self.profile.stages[stage]
        whole = sizes.weight_bytes if sizes.grad_bytes is None else sizes.grad_bytes
        part = (whole or 0.0) / len(hops)
        busy = [
            sum(
                over_links(self.profile, *hop, part)
                for hop in hops
                if wire in occupied_wires(self.profile, *hop)
            )
            for wire in self.wires(Thing(0, "4 sum", (stage,)))
        ]
        return steps * max(busy)

    def wires(self, thing: Thing) -> list[object]:
        """The wires in order; for an all-reduce, all wires of its hops, without repetition."""
        if thing.sort == "0 op":
            return []
        hops = self.circle(thing.number[0]) if thing.sort == "4 sum" else [self.ends_of(thing)]
        ways = [wire for a, b in hops for wire in occupied_wires(self.profile, a, b)]
        return list(dict.fromkeys(ways))


class Playing(Rules):
    """Simulates iterations; ``starts`` and ``ends`` hold the times of each thing."""

    def __init__(self, schedule: Schedule, iterations: int) -> None:
        super().__init__(schedule, iterations)
        self.starts: dict[Thing, float] = {}
        self.ends: dict[Thing, float] = {}
        self.now = 0.0
        self.ways = {thing: self.wires(thing) for thing in self.things}
        self.queues: dict[object, list[Leg]] = {}
        self.busy: dict[object, float] = {}
        self.ready = [Leg(thing, 0) for thing in self.things]  # not yet in a queue
        self.left: dict[Leg, float] = {}  # when each leg started
        while len(self.ends) < len(self.things):
            self.step()

    def ended(self, rank: int, iteration: int) -> float:
        """The time at which ``rank`` has finished this iteration and all earlier ones."""
        needs = [n for i in range(iteration + 1) for n in self.needs_of_end({rank}, i, self.once)]
        return max([0.0, *(self.ends[need] for need in needs)])

    def step(self) -> None:
        """Let the first leg that is ready join its queue, or advance the time."""
        waiting = [(self.joins(leg), leg) for leg in self.ready if self.joins(leg) <= self.now]
        if waiting:
            _, leg = min(waiting)
            self.ready.remove(leg)
            way = self.ways[leg.thing]
            if way:
                self.queues.setdefault(way[leg.hop], []).append(leg)
            else:
                self.start(leg)
        else:
            times = [*self.ends.values(), *self.busy.values()]
            self.now = min(time for time in times if time > self.now)
        for wire, queue in self.queues.items():
            while queue and self.busy.get(wire, 0.0) <= self.now:
                self.busy[wire] = self.now + self.duration(queue[0].thing)
                self.start(queue.pop(0))

    def joins(self, leg: Leg) -> float:
        """The time at which a leg joins its queue; infinite if it is not known yet."""
        if leg.hop:
            return self.left[Leg(leg.thing, leg.hop - 1)]
        needs = self.needs[leg.thing]
        if not all(self.over(need) for need in needs):
            return float("inf")
        return max([0.0, *(self.ends[need] for need in needs)])

    def start(self, leg: Leg) -> None:
        thing = leg.thing
        self.left[leg] = self.now
        self.starts.setdefault(thing, self.now)
        if leg.hop + 1 < len(self.ways[thing]):
            self.ready.append(Leg(thing, leg.hop + 1))
        else:  # all links are equal, so the last one is left last
            self.ends[thing] = self.now + self.duration(thing)

    def over(self, thing: Thing) -> bool:
        return self.ends.get(thing, float("inf")) <= self.now


def listed_times(schedule: Schedule) -> list[tuple[float, float]]:
    """Start and end of all transfers of one iteration.

    Repeatedly starts everything whose inputs have ended, until nothing is left.
    """
    rules, ends = Rules(schedule), dict[Thing, float]()
    moves = [Thing(0, "3 transfer", (i,)) for i in range(len(schedule.transfers))]
    wires = [set(rules.wires(move)) for move in moves]
    needs = dict(rules.needs)
    for i, move in enumerate(moves):
        needs[move] = needs[move] + [moves[k] for k in range(i) if wires[i] & wires[k]]
    left, starts = list(needs), dict[Thing, float]()
    while left:
        able = [thing for thing in left if all(need in ends for need in needs[thing])]
        assert able, "something never starts"
        for thing in able:
            starts[thing] = max([0.0, *(ends[need] for need in needs[thing])])
            ends[thing] = starts[thing] + rules.duration(thing)
        left = [thing for thing in left if thing not in ends]
    return [(starts[move], ends[move]) for move in moves]
