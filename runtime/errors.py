"""Errors of running programs."""

from __future__ import annotations

from pipeloom.ir.errors import PipeloomError


class ExecutionError(PipeloomError):
    """A rank could not run an instruction; the message names rank, position, instruction, peer."""

    exit_code = 1


class ShapeError(PipeloomError):
    """A tensor has another shape or dtype than the one that was agreed on."""

    exit_code = 1


class LaunchError(PipeloomError):
    """A process of a launch failed.

    ``rank``: the first that did, None where none answered in time; ``details``: its traceback;
    ``exit_code``: that of the error it raised.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, rank: int | None = None, details: str = "", exit_code: int = 1
    ) -> None:
        self.rank = rank
        self.details = details
        self.exit_code = exit_code
        super().__init__(message)
