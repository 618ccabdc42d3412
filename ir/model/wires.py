"""Which wires each of a number of messages occupies: none where a profile has no links."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from .links import Pair
from .profile import Profile


def occupied(profile: Profile, messages: Sequence[Pair]) -> list[tuple[str, ...]]:
    """The names of the wires that a message of each (from rank, to rank) occupies."""
    links, ranks = profile.links, profile.ranks
    if links is None:
        return [()] * len(messages)
    wires = cache(lambda source, target: links.wires(source, target, ranks))
    return [wires(source, target) for source, target in messages]


def kept(profile: Profile, messages: Sequence[Pair]) -> list[tuple[float, ...]]:
    """For how much of its time a message of each keeps each wire that it occupies."""
    links, ranks = profile.links, profile.ranks
    if links is None:
        return [()] * len(messages)
    shares = cache(lambda source, target: links.shares(source, target, ranks))
    return [shares(source, target) for source, target in messages]


def in_turn(profile: Profile, messages: Sequence[Pair]) -> list[tuple[int, int]]:
    """Each two messages, as indices, that come one right after the other over some wire."""
    result: list[tuple[int, int]] = []
    last: dict[str, int] = {}
    for i, wires in enumerate(occupied(profile, messages)):
        result += {(last[wire], i) for wire in wires if wire in last}
        last.update(dict.fromkeys(wires, i))
    return result
