"""The kernel alone: who is ready first goes first, and rounding does not decide who that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pipeloom.ir.cost.dependency_graph import Successors, edges_of
from pipeloom.ir.cost.event_kernels import Wires, first_come
from pipeloom.ir.model.profile import Link, Links, Profile, Sharing, StageProfile

SHORT, REST, WHOLE, FIRST, SECOND = range(5)  # two messages, after SHORT and REST and after WHOLE
ONE_WIRE = [("one",), ("one",)]


def played(whole: float, wires: Wires, *, at_once: bool) -> list[float]:
    """When each message starts and ends."""
    graph = Successors.of([edges_of([(SHORT, REST), (REST, FIRST), (WHOLE, SECOND)])], 5)
    durations, start, end = np.array([0.1, 0.2, whole, 1.0, 1.0]), np.zeros(5), np.zeros(5)
    assert len(first_come(*graph, durations, *wires, at_once, start, end)) == 5
    return [*start[FIRST:].tolist(), *end[FIRST:].tolist()]


def starts(whole: float) -> list[float]:
    return played(whole, Wires.of(3, ONE_WIRE), at_once=True)[:2]


def queued(
    whole: float, wires: Sequence[tuple[str, ...]], shares: Sequence[tuple[float, ...]]
) -> list[float]:
    return played(whole, Wires.of(3, wires, shares), at_once=False)


def test_of_two_messages_the_one_that_is_ready_first_goes_first() -> None:
    assert starts(0.31) == pytest.approx([0.3, 1.3])
    assert starts(0.29) == pytest.approx([1.29, 0.29])
    assert queued(0.31, ONE_WIRE, [(1.0,), (1.0,)]) == pytest.approx([0.3, 1.3, 1.3, 2.3])
    assert queued(0.29, ONE_WIRE, [(1.0,), (1.0,)]) == pytest.approx([1.29, 0.29, 2.29, 1.29])


def test_neighbours_on_a_wire() -> None:
    links = Links(Link(0, 1), shared=Sharing.PORTS)
    profile = Profile((StageProfile(1, 1, 1),), 3, links=links, shared_by=1)
    wires = Wires.of(1, profile.wires([(0, 1), (2, 1), (0, 2), (0, 1), (2, 1)]))
    pairs = sorted(zip(*(nodes.tolist() for nodes in wires.turns()), strict=True))
    assert pairs == [(1, 2), (1, 3), (2, 4), (2, 5), (3, 4), (4, 5)]
    assert len(Wires.of(3, [(), ()]).turns()[0]) == 0


def test_a_wire_is_free_once_the_share_of_the_one_before_is_over() -> None:
    assert queued(0.31, ONE_WIRE, [(0.5,), (1.0,)])[:2] == pytest.approx([0.3, 0.8])


def test_a_message_waits_for_its_second_wire_off_its_first() -> None:
    """FIRST passes a fast wire and, from 1.2 on, a slow one, which SECOND has until then."""
    wires = [("fast", "slow"), ("slow",)]
    assert queued(0.2, wires, [(0.25, 1.0), (1.0,)]) == pytest.approx([0.3, 0.2, 2.2, 1.2])
    both_fast = [("slow", "fast"), ("fast",)]
    assert queued(0.4, both_fast, [(1.0, 0.25), (1.0,)]) == pytest.approx([0.3, 0.55, 1.3, 1.55])


def test_rounding_does_not_decide_who_goes_first() -> None:
    """At equal weights fsdp's step time jumped by a tenth from one size of microbatch to the
    next."""
    assert 0.1 + 0.2 > 0.3
    assert starts(0.3) == pytest.approx([0.3, 1.3])
    assert queued(0.3, ONE_WIRE, [(1.0,), (1.0,)])[:2] == pytest.approx([0.3, 1.3])
