"""The kernel alone: who is ready first goes first, and rounding does not decide who that is."""

from __future__ import annotations

import numpy as np
import pytest

from pipeloom.ir.first_come import first_come, numbered
from pipeloom.ir.waits import by_origin, edges_of

SHORT, REST, WHOLE, FIRST, SECOND = range(5)  # two messages, after SHORT and REST and after WHOLE


def starts(whole: float, share: float = 1.0) -> list[float]:
    first, to, delay, missing = by_origin(
        [edges_of([(SHORT, REST), (REST, FIRST), (WHOLE, SECOND)])], 5
    )
    durations = np.array([0.1, 0.2, whole, 1.0, 1.0])
    wires = numbered([(), (), (), ("one",), ("one",)])
    start = np.zeros(5)
    shares = np.array([share, 1.0])
    assert len(first_come(first, to, delay, missing, durations, *wires, shares, start)) == 5
    return start[FIRST:].tolist()


def test_of_two_messages_the_one_that_is_ready_first_goes_first() -> None:
    assert starts(0.31) == pytest.approx([0.3, 1.3])
    assert starts(0.29) == pytest.approx([1.29, 0.29])


def test_a_wire_is_free_once_the_share_of_the_one_before_is_over() -> None:
    assert starts(0.31, share=0.5) == pytest.approx([0.3, 0.8])


def test_rounding_does_not_decide_who_goes_first() -> None:
    """At equal weights fsdp's step time jumped by a tenth from one size of microbatch to the next."""
    assert 0.1 + 0.2 > 0.3
    assert starts(0.3) == pytest.approx([0.3, 1.3])
