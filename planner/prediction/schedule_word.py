"""The word for a run's schedule: a family, or the one that the optimizer finds."""

from __future__ import annotations

from typing import Any

from pipeloom.ir.errors import InputError, did_you_mean
from pipeloom.solver.families import ASYNCHRONOUS, FAMILIES

OPTIMAL = "optimal"
"""In place of a family: the schedule that ``optimize`` finds for the predicted profile."""


def check_schedule(name: Any) -> None:
    """Raises InputError for what is no family; those whose stages do not stay are refused later."""
    base = name.lower().partition(":")[0] if isinstance(name, str) else OPTIMAL
    if base not in {*FAMILIES, OPTIMAL, "?"} and "not stated" not in base:
        raise refused(name, did_you_mean(base, [*FAMILIES, OPTIMAL]))


def refused(name: Any, because: str) -> InputError:
    """The error with the names that are possible."""
    usable = ", ".join([*filter(_stays, FAMILIES), OPTIMAL])
    return InputError(f"schedule: expected one of {usable}, got {name!r}{because}")


def _stays(family: str) -> bool:
    """Whether each of its stages has one rank, and steps are one update."""
    kind = type(FAMILIES[family]).__module__.split(".")[-2]
    return kind not in {"weights", "bidirectional"} and family not in ASYNCHRONOUS
