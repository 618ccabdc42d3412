"""Messages of all sizes arrive whole and in order on every transport; what goes wrong is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeloom.runtime import LaunchError, launch_ranks
from tests.distributed.cases import transport as transport_cases
from tests.distributed.cases.transport import SIZES
from tests.support.hub import on_threads

Launched = Callable[..., dict[int, Any]]


def staged(function: Callable[..., Any], ranks: int, args: Any = (), **options: Any) -> Any:
    return launch_ranks(function, ranks, (transport_cases.staged, *args), **options)


def gloo(function: Callable[..., Any], ranks: int, args: Any = (), **options: Any) -> Any:
    return launch_ranks(function, ranks, (transport_cases.gloo, *args), **options)


def hub(function: Callable[..., Any], ranks: int, args: Any = (), **options: Any) -> Any:
    return on_threads(function, ranks, (transport_cases.in_hub, *args), **options)


@pytest.fixture(params=[gloo, staged, hub])
def launched(request: pytest.FixtureRequest) -> Launched:
    found: Launched = request.param
    return found


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
        gloo(transport_cases.ends_halfway, 2, timeout=60)


def test_a_late_message_ends_the_wait(launched: Launched) -> None:
    with pytest.raises(
        LaunchError, match=r"^rank 0: TimeoutError: Timed out waiting 500ms for recv"
    ):
        launched(transport_cases.is_kept_waiting, 2, timeout=60)


def test_a_message_of_another_size_is_refused() -> None:
    for by_gloo in (gloo, staged):
        with pytest.raises(LaunchError, match=r"rank [01]: \w+Error: .*[Cc]onnection"):
            by_gloo(transport_cases.is_sent_another_size, 2, timeout=60)
