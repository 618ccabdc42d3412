"""Checks of messages and deadlocks between the ranks of a program; part of :mod:`.program`.

The messages from one rank to another form a channel, whose k-th receive gets the message of its
k-th send. A message is delivered when both its send and its receive are posted (rendezvous). Only
waits, reductions and relays block.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .program_facts import Line, Message, ProgramFacts, TensorName


def verify_channels(facts: ProgramFacts) -> Iterator[str]:
    """Yield a line for each wrong message, channel out of order, and rank in a deadlock."""
    yield from _messages(facts)
    yield from _orders(facts)
    yield from _deadlock(facts)


def _messages(facts: ProgramFacts) -> Iterator[str]:
    """Yield a line for each message that is missing, unneeded, duplicate or on a wrong rank.

    Each message that the schedule needs must be sent once and received once.
    """
    for verb in ("send", "recv"):
        lines = [line for row in facts.lines for line in row if line.verb == verb]
        counts = Counter(line.tensor for line in lines)
        for line in lines:
            message = facts.messages.get(line.tensor)
            if message is None:
                yield f"{line}: nobody needs {line.tensor} from another rank"
            elif message != _ends(line):
                yield f"{line}: {line.tensor} goes from rank {message[0]} to rank {message[1]}"
            elif counts[line.tensor] > 1:
                yield f"{line}: one of {counts[line.tensor]}, expected one {verb} of {line.tensor}"
        for tensor, (source, target) in facts.messages.items():
            if not counts[tensor]:
                done, at = ("sent", source) if verb == "send" else ("received", target)
                yield (
                    f"{tensor} is never {done} by rank {at}: it goes from rank {source} to {target}"
                )


def _ends(line: Line) -> Message:
    return (line.rank, line.peer) if line.verb == "send" else (line.peer, line.rank)


def _orders(facts: ProgramFacts) -> Iterator[str]:
    """Yield a line for each channel whose messages are received in another order than sent."""
    sends: defaultdict[Message, list[Line]] = defaultdict(list)
    receives: defaultdict[Message, list[Line]] = defaultdict(list)
    for row in facts.lines:
        for line in row:
            if line.verb in ("send", "recv"):
                (sends if line.verb == "send" else receives)[_ends(line)].append(line)
    for (source, target), posted in sends.items():
        pairs = zip(posted, receives[source, target], strict=False)
        for k, (send, receive) in enumerate(pairs):
            if send.tensor != receive.tensor:
                yield (
                    f"channel {source} to {target}: message {k} is sent as {send.tensor} "
                    f"({send}) but received as {receive.tensor} ({receive})"
                )
                break  # the later ones are shifted, too


@dataclass(slots=True)
class _World:
    """A simulated state of all ranks, in which no op or message takes time.

    ``at``: the position of each rank in its instructions. ``posted``: the tensors posted so far, by
    (``send`` or ``recv``, channel). ``place``: the channel, and the index in it, of each posted
    send or receive, by (verb, rank, tensor). ``arrived``: the (stages, rank) of reductions that a
    rank has reached. ``relayed``: (verb, rank) of all instructions run so far; a relay waits until
    that of its source is among them.
    """

    facts: ProgramFacts
    at: list[int]
    posted: defaultdict[tuple[str, Message], list[TensorName]] = field(
        default_factory=lambda: defaultdict(list)
    )
    place: dict[tuple[str, int, TensorName], tuple[Message, int]] = field(default_factory=dict)
    arrived: Counter[tuple[tuple[int, ...], int]] = field(default_factory=Counter)
    relayed: set[tuple[str, int]] = field(default_factory=set)

    def advance(self, rank: int) -> bool:
        """Run ``rank`` until it blocks or ends. Returns whether it ran at least one instruction."""
        lines, begin = self.facts.lines[rank], self.at[rank]
        while self.at[rank] < len(lines):
            line = lines[self.at[rank]]
            if line.verb in ("send", "recv"):
                self._post(line)
            elif self.blocker(line):
                break
            self.relayed.add((line.verb, rank))
            self.at[rank] += 1
        return self.at[rank] > begin

    def _post(self, line: Line) -> None:
        channel = self.posted[line.verb, _ends(line)]
        self.place[line.verb, line.rank, line.tensor] = _ends(line), len(channel)
        channel.append(line.tensor)

    def blocker(self, line: Line) -> str | None:
        """The reason why ``line`` must wait for another rank, as text; None if it need not wait."""
        if line.verb == "reduce":
            return self._reduction(line)
        if line.verb in ("relay sums", "relay verdict"):
            passed_on = line.source is None or (line.verb, line.source) in self.relayed
            return None if passed_on else f"rank {line.source} has not come to its own"
        if line.verb not in ("wait send", "wait recv"):
            return None
        mine, other = ("send", "recv") if line.verb == "wait send" else ("recv", "send")
        message, place = self.place.get((mine, line.rank, line.tensor), ((0, 0), -1))
        if len(self.posted[other, message]) > place:
            return None  # the rank's own replay reports a wait without a post
        peer = message[1] if mine == "send" else message[0]
        return f"rank {peer} has not posted its {other}"

    def _reduction(self, line: Line) -> str | None:
        members = {rank for s in line.stages for rank in self.facts.owners.get(s, ())}
        self.arrived[line.stages, line.rank] = 1
        late = sorted(rank for rank in members if not self.arrived[line.stages, rank])
        return f"rank {late[0]} has not come to it" if late else None


def _deadlock(facts: ProgramFacts) -> Iterator[str]:
    """Yield a line for each rank that waits forever, with its instruction and the reason."""
    ranks = range(facts.schedule.plan.ranks)
    world = _World(facts, [0 for _ in ranks])
    while any(world.advance(rank) for rank in ranks):
        pass
    for rank in ranks:
        if world.at[rank] < len(facts.lines[rank]):
            line = facts.lines[rank][world.at[rank]]
            yield f"deadlock: {line} waits for ever: {world.blocker(line)}"
