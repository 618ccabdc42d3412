"""Messages of all sizes arrive whole and in order; what goes wrong is said."""

from __future__ import annotations

import pytest

from pipeloom.runtime.errors import LaunchError
from pipeloom.runtime.launch import launch
from tests.distributed import transport_cases
from tests.distributed.transport_cases import SIZES


def test_sizes_on_both_sides_of_short_arrive_in_any_order_of_waits() -> None:
    assert launch(transport_cases.mixed_sizes, 2, timeout=120) == {
        rank: [True] * len(SIZES) for rank in (0, 1)
    }


def test_more_than_the_socket_holds_arrives_in_order() -> None:
    assert launch(transport_cases.more_than_fits, 2, timeout=120) == {0: True, 1: True}


def test_a_short_send_needs_no_receive() -> None:
    launch(transport_cases.sent_before_it_is_wanted, 2, timeout=60)


def test_a_peer_that_ends_is_named() -> None:
    with pytest.raises(LaunchError, match=r"rank 1 died with exit code 3"):
        launch(transport_cases.ends_halfway, 2, timeout=60)


def test_a_late_message_ends_the_wait() -> None:
    with pytest.raises(
        LaunchError, match=r"^rank 0: TimeoutError: Timed out waiting 500ms for recv"
    ):
        launch(transport_cases.is_kept_waiting, 2, timeout=60)


def test_a_message_of_another_size_is_refused() -> None:
    with pytest.raises(LaunchError, match="a message of 8 bytes came, expected 9"):
        launch(transport_cases.is_sent_another_size, 2, timeout=60)
