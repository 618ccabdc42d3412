"""The small tree of errors that pipeloom raises on purpose."""

from __future__ import annotations

from collections.abc import Sequence


class PipeloomError(Exception):
    """Base of every error raised on purpose; the command line prints it without a traceback."""

    exit_code = 2


class InputError(PipeloomError):
    """An input is wrong. ``errors`` holds one readable line for each thing that is."""

    def __init__(self, *errors: str) -> None:
        self.errors: tuple[str, ...] = errors
        super().__init__("\n".join(errors))


class InfeasibleError(PipeloomError):
    """No schedule meets the memory limit.

    ``smallest`` is the smallest feasible limit (in the profile's unit of memory),
    ``rank`` the rank that needs it.
    """

    exit_code = 1

    def __init__(self, message: str, *, smallest: float, rank: int) -> None:
        self.smallest = smallest
        self.rank = rank
        super().__init__(message)


class InvalidScheduleError(PipeloomError):
    """A schedule or program breaks the rules; ``violations`` holds one line for each breach."""

    exit_code = 1

    def __init__(self, violations: Sequence[str]) -> None:
        self.violations: tuple[str, ...] = tuple(violations)
        super().__init__("\n".join(violations))
