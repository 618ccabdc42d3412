"""Faults that ranks tell each other by the store."""

from __future__ import annotations

import torch

from pipeloom.ir import InputError, UnsupportedError
from pipeloom.runtime import ChangedInPlaceError
from pipeloom.runtime.transport.base import Fault


def test_a_fault_is_the_same_after_it_was_told() -> None:
    """So the rank that it is of raises its own error, with its type and where it was raised."""
    own = Fault.of(1, ValueError("a bad target"))
    assert Fault.read(own.written()) == own


def test_all_ranks_raise_an_error_of_a_kind_that_they_know() -> None:
    for error in (ChangedInPlaceError(torch.zeros(2)), UnsupportedError("a table")):
        found = Fault.read(Fault.of(0, error).written()).raised()
        assert type(found) is InputError
        assert found.exit_code == error.exit_code
