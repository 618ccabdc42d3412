"""The name of a run's schedule: a family, or ``optimal``."""

from __future__ import annotations

from typing import Any

from pipeloom.ir.errors import InputError, did_you_mean
from pipeloom.solver.families import ASYNCHRONOUS, FAMILIES

OPTIMAL = "optimal"
"""The name for the schedule that ``optimize`` finds for the predicted profile."""


def check_schedule(name: Any) -> None:
    """Raises InputError if it is not a family; families whose stages change ranks are refused
    later."""
    base = name.lower().partition(":")[0] if isinstance(name, str) else OPTIMAL
    if base not in {*FAMILIES, OPTIMAL, "?"} and "not stated" not in base:
        raise refused(name, did_you_mean(base, [*FAMILIES, OPTIMAL]))


def refused(name: Any, because: str) -> InputError:
    """The error with the valid names."""
    usable = ", ".join([*filter(_stays, FAMILIES), OPTIMAL])
    return InputError(f"schedule: expected one of {usable}, got {name!r}{because}")


def _stays(family: str) -> bool:
    """Whether each stage is on one rank, and weights are updated once per step."""
    kind = type(FAMILIES[family]).__module__.split(".")[-2]
    return kind not in {"weights", "bidirectional"} and family not in ASYNCHRONOUS
