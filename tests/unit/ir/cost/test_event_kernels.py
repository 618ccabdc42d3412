"""The kernel alone: who is ready first goes first, and rounding does not decide who that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pipeloom.ir.cost.dependency_graph import Successors, edges_of
from pipeloom.ir.cost.event_kernels import Wires, first_come

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


def test_rounding_does_not_decide_who_goes_first() -> None:
    """At equal weights fsdp's step time jumped by a tenth from one size of microbatch to the
    next."""
    assert 0.1 + 0.2 > 0.3
    assert starts(0.3) == pytest.approx([0.3, 1.3])
    assert queued(0.3, ONE_WIRE, [(1.0,), (1.0,)])[:2] == pytest.approx([0.3, 1.3])
