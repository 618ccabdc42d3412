"""Messages of all sizes arrive whole and in order on every transport; what goes wrong is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeloom.runtime.errors import LaunchError
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.launch.threads import launch_local
from tests.distributed.cases import transport as transport_cases
from tests.distributed.cases.transport import SIZES

Launched = Callable[..., dict[int, Any]]
# how each CPU transport gets its ranks: processes for gloo, threads for local
LAUNCHES: dict[str, Launched] = {"gloo": launch, "local": launch_local}


@pytest.fixture(params=LAUNCHES)
def launched(request: pytest.FixtureRequest) -> Launched:
    return LAUNCHES[request.param]


def test_messages_of_all_sizes_arrive_in_any_order_of_waits_and_many_under_way_in_order(
    launched: Launched,
) -> None:
    found = launched(transport_cases.messages, 2, timeout=120)
    assert found == {rank: ([True] * len(SIZES), True) for rank in (0, 1)}


def test_collectives_meet_in_order(launched: Launched) -> None:
    names = [f"rank {rank}" for rank in range(3)]
    ends, middle = ([3.0, 2.0], names, "rank 2"), ([1.0, 1.0], names, "rank 2")
    assert launched(transport_cases.collectives, 3, timeout=120) == {0: ends, 1: middle, 2: ends}


def test_a_peer_that_ends_is_named() -> None:
    with pytest.raises(LaunchError, match=r"rank 1 died with exit code 3"):
        launch(transport_cases.ends_halfway, 2, timeout=60)


def test_a_late_message_ends_the_wait(launched: Launched) -> None:
    with pytest.raises(
        LaunchError, match=r"^rank 0: TimeoutError: Timed out waiting 500ms for recv"
    ):
        launched(transport_cases.is_kept_waiting, 2, timeout=60)


def test_a_message_of_another_size_is_refused() -> None:
    with pytest.raises(LaunchError, match="a message of 8 bytes came, expected 9"):
        launch_local(transport_cases.is_sent_another_size, 2, timeout=60)
    with pytest.raises(LaunchError, match=r"rank [01]: \w+Error: .*[Cc]onnection"):
        launch(transport_cases.is_sent_another_size, 2, timeout=60)
