"""Iterations played moment by moment, by plain loops that share nothing with :mod:`pipeloom.ir.replay`.

Messages must take some time where there are wires: what is first at one moment is else a matter of
taste.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from pipeloom.ir.ops import Op, OpKind
from pipeloom.ir.schedule import Schedule
from tests.plain_wires import duration_of, lasts, needs_of, occupied_wires, over_links


class Thing(NamedTuple):
    """An op, an activation that changes ranks, a transfer or an all-reduce; in this order."""

    iteration: int
    sort: str  # "0 op", "1 message", "2 transfer" or "3 sum"
    number: tuple[
        int, ...
    ]  # op: rank, position; message: forward or not, its receiver's; transfer; stage


class Playing:
    """``ends`` says when each thing has ended, ``starts`` when it started."""

    def __init__(self, schedule: Schedule, iterations: int) -> None:
        self.schedule, self.profile = schedule, schedule.problem.profile
        self.ranks = range(schedule.problem.ranks)
        self.rows = [schedule.ops(rank) for rank in self.ranks]
        self.starts: dict[Thing, float] = {}
        self.ends: dict[Thing, float] = {}
        self.now = 0.0
        things = [thing._replace(iteration=i) for i in range(iterations) for thing in self.once]
        self.needs: dict[Thing, list[Thing]] = {}
        for thing in things:
            self.needs[thing] = self.needs_of(thing)
        while len(self.ends) < len(things):
            self.step()

    @cached_property
    def once(self) -> list[Thing]:
        """All things of one iteration."""
        ops = [Thing(0, "0 op", (r, i)) for r in self.ranks for i in range(len(self.rows[r]))]
        messages = [message for op in ops if (message := self.message_to(op)) is not None]
        number = range(len(self.schedule.transfers))
        sums = [Thing(0, "3 sum", (stage,)) for stage in self.holders]
        return [*ops, *messages, *(Thing(0, "2 transfer", (i,)) for i in number), *sums]

    @cached_property
    def holders(self) -> dict[int, list[int]]:
        """The ranks that run each stage of which nothing travels, where they are several."""
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
        """Rank and position of what makes each output."""
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
        """The message that brings the op its input, where another rank makes it."""
        made = self.maker(thing)
        if made is None or made[0] == thing.number[0]:
            return None
        backward = int(self.op(thing).kind is not OpKind.F)
        return Thing(thing.iteration, "1 message", (backward, *thing.number))

    def maker(self, thing: Thing) -> tuple[int, int] | None:
        """Who makes what comes from the stage beside: rank and position."""
        op = self.op(thing)
        beside = [key for key in needs_of(op, self.schedule.problem.stages) if key[1] != op.stage]
        return self.homes[beside[0]] if beside else None

    def ends_of(self, thing: Thing) -> tuple[int, ...]:
        """From which rank to which; of an all-reduce all that take part."""
        if thing.sort == "3 sum":
            return tuple(self.holders[thing.number[0]])
        if thing.sort == "2 transfer":
            transfer = self.schedule.transfers[thing.number[0]]
            return transfer.source, transfer.target
        if thing.sort == "0 op":
            return thing.number[0], thing.number[0]
        made = self.maker(thing)
        assert made is not None
        return made[0], thing.number[1]

    def needs_of(self, thing: Thing) -> list[Thing]:
        i = thing.iteration
        touched = set(self.ends_of(thing))
        result = self.needs_of_end(touched, i - 1, self.once) if i > 0 else []
        if thing.sort == "0 op":
            return result + self.needs_of_op(thing)
        if thing.sort == "3 sum":
            earlier = [other for other in self.once if other < thing._replace(iteration=0)]
            return result + self.needs_of_end(touched, i, earlier)
        if thing.sort == "1 message":
            made = self.maker(thing)
            assert made is not None
            return [*result, Thing(i, "0 op", made)]
        (number,) = thing.number
        t = self.schedule.transfers[number]
        result += [Thing(i, "0 op", (t.source, k)) for k in range(t.after)]
        result += [Thing(i, "0 op", (t.target, k)) for k in range(t.room)]
        same = [k for k in range(number) if self.schedule.transfers[k].item == t.item]
        return result + [Thing(i, "2 transfer", (k,)) for k in same]

    def needs_of_end(self, ranks: set[int], iteration: int, things: list[Thing]) -> list[Thing]:
        """What ``ranks`` are done with an iteration after: what one sends need only be ready to go."""
        result = []
        for thing in (other._replace(iteration=iteration) for other in things):
            ends = self.ends_of(thing)
            arrives = thing.sort in ("1 message", "2 transfer")
            if ranks & set(ends[1:] if arrives else ends):
                result.append(thing)
            elif arrives and ends[0] in ranks:
                result += self.needs[thing]
        return list(dict.fromkeys(result))

    def ended(self, rank: int, iteration: int) -> float:
        """When the rank is done with that iteration and all before it."""
        needs = [n for i in range(iteration + 1) for n in self.needs_of_end({rank}, i, self.once)]
        return max([0.0, *(self.ends[need] for need in needs)])

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
                result.append(Thing(i, "2 transfer", (k,)))
        return result

    def duration(self, thing: Thing) -> float:
        if thing.sort == "0 op":
            return duration_of(self.profile, self.op(thing))
        if thing.sort == "2 transfer":
            return lasts(self.profile, self.schedule.transfers[thing.number[0]])
        if thing.sort == "3 sum":
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
            for wire in self.wires(Thing(0, "3 sum", (stage,)))
        ]
        return steps * max(busy)

    def wires(self, thing: Thing) -> set[object]:
        if thing.sort == "3 sum":
            return set().union(
                *(occupied_wires(self.profile, *hop) for hop in self.circle(thing.number[0]))
            )
        if thing.sort == "0 op":
            return set()
        source, target = self.ends_of(thing)
        return occupied_wires(self.profile, source, target)

    def step(self) -> None:
        """Starts the first thing that may, or lets time pass."""
        waiting = []
        for thing, needs in self.needs.items():
            if thing not in self.starts and all(self.over(need) for need in needs):
                ready = max([0.0, *(self.ends[need] for need in needs)])
                waiting.append((ready, thing))
        taken: set[object] = set()
        for thing in self.starts:
            taken |= set() if self.over(thing) else self.wires(thing)
        for _, thing in sorted(waiting):
            wires = self.wires(thing)
            if not wires & taken:
                self.starts[thing] = self.now
                self.ends[thing] = self.now + self.duration(thing)
                return
            taken |= wires  # who was ready later does not overtake
        self.now = min(end for end in self.ends.values() if end > self.now)

    def over(self, thing: Thing) -> bool:
        return self.ends.get(thing, float("inf")) <= self.now
