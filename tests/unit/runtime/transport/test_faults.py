"""Faults that ranks tell each other by the store."""

from __future__ import annotations

from pipeloom.runtime.transport.base import Fault


def test_a_fault_is_the_same_after_it_was_told() -> None:
    """So the rank that it is of raises its own error, with its type and where it was raised."""
    own = Fault.of(1, ValueError("a bad target"))
    assert Fault.read(own.written()) == own
